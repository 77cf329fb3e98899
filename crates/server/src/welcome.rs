//! The text that a terminal shows once the server is ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use motet::text::TextCodec;

use crate::app::App;

const QUESTION: &str = "What is a motet?";

/// The address, and a request that a shell can send.
pub(crate) fn text(app: &App, address: SocketAddr) -> String {
    let template = app.engine.text().and_then(TextCodec::template);
    example(
        &app.model,
        template.is_some(),
        app.keys.are_required(),
        address,
    )
}

fn example(model: &str, has_template: bool, has_keys: bool, address: SocketAddr) -> String {
    let host: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let url = format!("http://{}", SocketAddr::new(host, address.port()));
    let (route, body) = if has_template {
        let messages = format!(r#""messages": [{{"role": "user", "content": "{QUESTION}"}}]"#);
        ("chat/completions", messages)
    } else {
        // A base model continues texts.
        ("completions", format!(r#""prompt": "{QUESTION}""#))
    };
    let key = if has_keys {
        " -H 'authorization: Bearer KEY'"
    } else {
        ""
    };
    format!(
        "{model} is ready at {url}\n  curl -N {url}/v1/{route}{key} -H 'content-type: \
         application/json' -d '{{{body}, \"stream\": true}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_request_that_the_server_takes() {
        let check = |has_template, has_keys, address: &str, expected: &str| {
            let address = address.parse().expect("an address");
            let text = example("m", has_template, has_keys, address);
            assert_eq!(text, expected);
        };
        check(
            true,
            false,
            "0.0.0.0:8080",
            "m is ready at http://127.0.0.1:8080\n  curl -N \
             http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d \
             '{\"messages\": [{\"role\": \"user\", \"content\": \"What is a motet?\"}], \"stream\": true}'",
        );
        check(
            false,
            true,
            "[::]:1",
            "m is ready at http://[::1]:1\n  curl -N http://[::1]:1/v1/completions -H \
             'authorization: Bearer KEY' -H 'content-type: application/json' -d '{\"prompt\": \
             \"What is a motet?\", \"stream\": true}'",
        );
    }
}
