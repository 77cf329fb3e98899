//! The user, the cache and the class of a request.

use motet::Request;
use motet::request::CacheUse;

use crate::app::App;
use crate::class::Class;
use crate::error::ApiError;
use crate::keys::Caller;

/// The fields of a body that say for whom a request runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tenancy<'a> {
    /// The user that the client names.
    pub(crate) user: Option<&'a str>,
    /// The salt that separates the request's cached state.
    pub(crate) cache_salt: Option<&'a str>,
    /// Whether the request uses the cache; `None` means that it does.
    pub(crate) uses_cache: Option<bool>,
    /// The priority class that the client asks for.
    pub(crate) class: Option<Class>,
}

impl Tenancy<'_> {
    /// Sets user, cache and priority of the engine's request, as far as the caller's key allows.
    ///
    /// # Errors
    ///
    /// A class above the key's highest is an error.
    pub(crate) fn apply(
        self,
        app: &App,
        caller: &Caller,
        request: &mut Request,
    ) -> Result<(), ApiError> {
        // A key is one user, whatever `user` says; otherwise more names would get a larger share.
        let user = caller.name.as_deref().or(self.user);
        request.user = user.map(str::to_owned);
        request.cache = match self.uses_cache {
            Some(false) => CacheUse::Off,
            Some(true) | None => CacheUse::Shared,
        };
        request.cache_salt = self.salt(app, caller);
        request.priority = self.class(app, caller)?.priority();
        Ok(())
    }

    /// The requested class. A class that is too high is rejected, not lowered: with a lower class
    /// the client would wait without knowing why.
    fn class(self, app: &App, caller: &Caller) -> Result<Class, ApiError> {
        let highest = caller.class_max.unwrap_or(app.access.class_max);
        match self.class {
            Some(class) if class > highest => Err(ApiError::class(class, highest)),
            Some(class) => Ok(class),
            None => Ok(Class::Normal.min(highest)),
        }
    }

    /// Different keys share no cached state, unless a setting allows it.
    fn salt(self, app: &App, caller: &Caller) -> Option<String> {
        let salt = self.cache_salt;
        if self.uses_cache == Some(false) {
            // The engine rejects a salt beside it.
            return salt.map(str::to_owned);
        }
        let own = caller.name.as_ref().filter(|_| !app.access.share_cache);
        match (own, salt) {
            // The name's length comes first, and a mark before the salt, so that different pairs
            // have different salts. The empty salt is a salt, too.
            (Some(name), Some(salt)) => Some(format!("{}:{name}:{salt}", name.len())),
            (Some(name), None) => Some(format!("{}:{name}", name.len())),
            (None, salt) => salt.map(str::to_owned),
        }
    }
}
