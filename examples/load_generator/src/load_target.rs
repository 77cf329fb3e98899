//! The engine or the server that the users talk to.

use std::sync::Arc;

use anyhow::{Context, Result};
use motet::Engine;

use crate::arguments::Arguments;
use crate::conversation::Form;
use crate::progress::Progress;
use crate::server::{Client, Settings};
use crate::start;

/// The engine or the server that the users talk to.
#[derive(Clone, Debug)]
pub(crate) enum LoadTarget {
    /// An engine in this process.
    Engine(Arc<Engine>),
    /// A server at a URL.
    Server(Box<Client>),
}

impl LoadTarget {
    /// Returns the engine or server that the arguments name, and its start-up time in seconds.
    pub(crate) async fn find(arguments: &Arguments, progress: &Progress) -> Result<(Self, f64)> {
        let Some(url) = &arguments.server.url else {
            let started = start::engine(arguments, progress).await?;
            let load_target = Self::Engine(Arc::new(started.engine));
            return Ok((load_target, started.load_time.as_secs_f64()));
        };
        let settings = Settings {
            url: url.clone(),
            api_key: arguments.server.api_key.clone(),
            model: arguments.server.model_name.clone(),
            silence_max: arguments.server.silence_max(),
        };
        let client = Client::connect(settings).await;
        let client = client.with_context(|| format!("cannot talk to {url}"))?;
        Ok((Self::Server(Box::new(client)), 0.0))
    }

    /// The engine, if it is in this process.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        match self {
            Self::Engine(engine) => Some(engine),
            Self::Server(_) => None,
        }
    }

    /// The model's name.
    pub(crate) fn model(&self) -> &str {
        match self {
            Self::Engine(engine) => &engine.model().name,
            Self::Server(client) => client.model(),
        }
    }

    /// The form in which it takes conversations.
    pub(crate) fn form(&self) -> Form {
        let Some(engine) = self.engine() else {
            return Form::Chat;
        };
        match engine.text().map(|text| text.template()) {
            Some(Some(_)) => Form::Chat,
            Some(None) => Form::Script,
            None => Form::Tokens,
        }
    }

    /// Shuts an engine down; a server continues.
    pub(crate) async fn shut_down(self) {
        if let Self::Engine(engine) = self
            && let Some(engine) = Arc::into_inner(engine)
        {
            engine.shutdown(motet::Shutdown::Abort).await;
        }
    }
}
