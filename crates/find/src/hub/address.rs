//! Addresses of a hub, and of the servers that it redirects to.

use ureq::http::Uri;

/// The address that a redirect leads to. From https it leads to https only.
pub(super) fn target(from: &str, location: &str) -> Option<String> {
    let from: Uri = from.parse().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(format!(
            "{}://{}{location}",
            from.scheme_str()?,
            from.authority()?
        ));
    }
    let to: Uri = location.parse().ok()?;
    match (from.scheme_str()?, to.scheme_str()?) {
        ("http" | "https", "https") | ("http", "http") => Some(location.to_owned()),
        _ => None,
    }
}

pub(super) fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| {
        let url: Uri = url.parse().ok()?;
        Some((url.scheme()?.clone(), url.authority()?.clone()))
    };
    matches!((origin(one), origin(other)), (Some(one), Some(other)) if one == other)
}

/// A path in a URL: everything but letters, digits and a few signs becomes `%XX`.
pub(super) fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let encode = |byte: u8| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    path.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_addresses_as_safe_as_before() {
        let check = |from: &str, location: &str, expected: Option<&str>| {
            assert_eq!(
                target(from, location).as_deref(),
                expected,
                "{from} {location}"
            );
        };
        check("https://h/a/b?c", "/d?e", Some("https://h/d?e"));
        check("https://h/a", "https://cdn/x", Some("https://cdn/x"));
        check("https://h/a", "http://cdn/x", None);
        check(
            "http://127.0.0.1:1/a",
            "http://127.0.0.1:2/x",
            Some("http://127.0.0.1:2/x"),
        );
        check("http://h/a", "file:///etc/passwd", None);
        check("http://h/a", "//cdn/x", None);
        check("http://h/a", "x", None);
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        assert!(is_same_origin("https://h", "https://h/a/b"));
        for other in ["http://h/a", "https://h:1/a", "https://h.evil/a", "h"] {
            assert!(!is_same_origin("https://h", other), "{other}");
        }
    }

    #[test]
    fn paths_are_written_as_servers_do() {
        assert_eq!(encoded("a b/ü?#%.gguf"), "a%20b/%C3%BC%3F%23%25.gguf");
    }
}
