//! The addresses of a server's API.

use hyper::Uri;

use super::ServerError;

/// The addresses that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) chat: Uri,
    pub(super) models: Uri,
}

impl Addresses {
    /// Returns the addresses of a server at `http://host:port`, with or without `/v1`.
    pub(super) fn of(url: &str) -> Result<Self, ServerError> {
        let error = |why| ServerError::Url {
            url: url.to_owned(),
            why,
        };
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let parse = |path| format!("{base}{path}").parse::<Uri>();
        let chat = parse("/v1/chat/completions");
        let models = parse("/v1/models");
        let (Ok(chat), Ok(models)) = (chat, models) else {
            return Err(error("expected http://HOST:PORT"));
        };
        match (chat.scheme_str(), chat.host()) {
            (_, None | Some("")) => Err(error("expected http://HOST:PORT")),
            (Some("http"), _) => Ok(Self { chat, models }),
            (Some("https"), _) if cfg!(feature = "tls") => Ok(Self { chat, models }),
            (Some("https"), _) => Err(error(
                "this program was built without TLS; build it with `--features tls`",
            )),
            _ => Err(error("expected http://HOST:PORT")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_the_version() {
        for url in [
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8080/v1",
            "http://127.0.0.1:8080/v1/",
        ] {
            let chat = Addresses::of(url).expect("an address").chat;
            assert_eq!(chat, "http://127.0.0.1:8080/v1/chat/completions");
        }
        let below = Addresses::of("http://host/team/v1").expect("an address");
        assert_eq!(below.models, "http://host/team/v1/models");
    }

    #[test]
    fn invalid_addresses_are_rejected_by_name() {
        for url in ["", "127.0.0.1:8080", "ftp://host", "http://", "http://a b"] {
            let error = Addresses::of(url).expect_err("not an address").to_string();
            assert!(error.contains("expected http://HOST:PORT"), "{error}");
        }
        #[cfg(not(feature = "tls"))]
        {
            let error = Addresses::of("https://host").expect_err("no TLS");
            assert!(error.to_string().contains("--features tls"));
        }
    }
}
