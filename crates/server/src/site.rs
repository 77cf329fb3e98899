//! Hosts and origins in `Host`, `Origin` and the command line.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::Authority;

/// A host: an address, or a name in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address. IPv4-mapped IPv6 addresses become IPv4.
    Address(IpAddr),
    /// A name.
    Name(String),
}

/// A host and its port, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) host: Host,
    pub(crate) port: Option<u16>,
}

/// The origin of the page that sends a request, from the `Origin` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A page without an origin, such as a file.
    Null,
    /// A page of a site.
    Page {
        /// Such as `https`.
        scheme: String,
        /// The site's host.
        host: Host,
        /// The port; if none is given, that of the scheme.
        port: Option<u16>,
    },
}

impl Host {
    /// Whether it always resolves to this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::Name(name) => name == "localhost",
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl FromStr for Host {
    type Err = String;

    /// Parses a host of the command line, without port and scheme.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(address.into());
        }
        match Site::parse(text) {
            Some(Site { host, port: None }) => Ok(host),
            _ => Err("expected a host's name or address, without scheme and port".into()),
        }
    }
}

impl Site {
    /// Parses the value of a `Host` header.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let authority = Authority::from_str(text).ok()?;
        let spelled = authority.host();
        // A user before the host, or anything but a port after it, is an error.
        let port = match text.strip_prefix(spelled)? {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        let unbracketed = spelled
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host = match unbracketed {
            Some(address) => Host::from(IpAddr::V6(address.parse().ok()?)),
            None if spelled.is_empty() => return None,
            None => match spelled.parse::<IpAddr>() {
                Ok(address) => address.into(),
                Err(_) => Host::Name(spelled.to_ascii_lowercase()),
            },
        };
        Some(Self { host, port })
    }
}

impl Origin {
    /// Whether a page of this origin came from this site, by the request's `Host`.
    pub(crate) fn is_from(&self, site: &Site) -> bool {
        match self {
            Self::Null => false,
            Self::Page { scheme, host, port } => {
                *host == site.host && *port == site.port.or(default_port(scheme))
            }
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "null" {
            return Ok(Self::Null);
        }
        let parsed = text.split_once("://").and_then(|(scheme, site)| {
            let site = Site::parse(site)?;
            let scheme = scheme.to_ascii_lowercase();
            Some((scheme, site)).filter(|(scheme, _)| !scheme.is_empty())
        });
        let (scheme, Site { host, port }) = parsed.ok_or(
            "expected `null` or a scheme and a host without a path, such as https://chat.example",
        )?;
        let port = port.or(default_port(&scheme));
        Ok(Self::Page { scheme, host, port })
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Host {
        Host::Name(name.to_owned())
    }

    #[test]
    fn hosts_are_parsed_with_any_port() {
        let check = |text: &str, expected: Option<(Host, Option<u16>)>| {
            let site = Site::parse(text).map(|site| (site.host, site.port));
            assert_eq!(site, expected, "{text}");
        };
        let local = Host::from(IpAddr::from([127, 0, 0, 1]));
        check("localhost", Some((name("localhost"), None)));
        check("LocalHost:8080", Some((name("localhost"), Some(8080))));
        check("127.0.0.1:1", Some((local.clone(), Some(1))));
        check("[::ffff:127.0.0.1]", Some((local, None)));
        check(
            "[::1]:80",
            Some((Host::from("::1".parse::<IpAddr>().expect("one")), Some(80))),
        );
        check("localhost.", Some((name("localhost."), None)));
        for rejected in [
            "",
            ":80",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "user@localhost",
            "localhost:80@evil.example",
            "[localhost]",
            "[127.0.0.1]",
            "local host",
            "localhost/x",
        ] {
            check(rejected, None);
        }
    }

    #[test]
    fn origin_matches_site_by_host_and_port() {
        let check = |origin: &str, site: &str, expected: bool| {
            let read: Origin = origin.parse().expect(origin);
            let site = Site::parse(site).expect(site);
            assert_eq!(read.is_from(&site), expected, "{origin} of {site:?}");
        };
        check("http://localhost:8080", "localhost:8080", true);
        check("http://LOCALHOST", "localhost", true);
        check("http://localhost", "localhost:80", true);
        check("https://chat.example", "chat.example", true);
        check("https://chat.example:443", "chat.example", true);
        check("http://localhost:3000", "localhost:8080", false);
        check("http://127.0.0.1:8080", "localhost:8080", false);
        check("http://evil.example", "localhost", false);
        check("null", "localhost", false);
        for rejected in ["", "localhost", "://x", "http://", "http://x/path", "a b"] {
            assert!(rejected.parse::<Origin>().is_err(), "{rejected}");
        }
    }

    #[test]
    fn names_for_the_command_line_have_no_port() {
        assert_eq!("Chat.example".parse(), Ok(name("chat.example")));
        assert!("::1".parse::<Host>().expect("an address").is_loopback());
        assert!("[::1]".parse::<Host>().expect("an address").is_loopback());
        assert!("chat.example:80".parse::<Host>().is_err());
        assert!("http://chat.example".parse::<Host>().is_err());
    }
}
