//! The input of a call.
//!
//! A stream sends the arguments of a call as they are written, before it is known whether the call
//! will be complete. Clients read a beginning of JSON as its complete members, and a whole message
//! has the same.

use serde_json::{Map, Value};

/// The input that these arguments are. A beginning has the members that are complete.
pub(super) fn input_of(arguments: &str) -> Map<String, Value> {
    let whole = serde_json::from_str(arguments);
    whole.unwrap_or_else(|_| {
        let members = format!("{}}}", &arguments[..members_end(arguments)]);
        serde_json::from_str(&members).unwrap_or_default()
    })
}

/// The offset behind the last complete member of an object that is cut off. The end of a number or
/// of a name is certain only once a comma follows.
fn members_end(arguments: &str) -> usize {
    let (mut end, mut levels) = (1.min(arguments.len()), 0_usize);
    let (mut is_value, mut in_string, mut is_escaped) = (false, false, false);
    for (at, byte) in arguments.bytes().enumerate() {
        let was_in_string = in_string;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => levels += 1,
            b'}' | b']' => levels = levels.saturating_sub(1),
            b':' if levels == 1 => is_value = true,
            b',' if levels == 1 => {
                is_value = false;
                end = at;
            }
            _ => {}
        }
        let ends_string = was_in_string && !in_string;
        if is_value && levels == 1 && (ends_string || matches!(byte, b'}' | b']') && !in_string) {
            end = at + 1;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn input_has_the_complete_members() {
        let check = |arguments: &str, expected: Value| {
            assert_eq!(Value::Object(input_of(arguments)), expected, "{arguments}");
        };
        for (arguments, expected) in [
            (r#"{"zone": 2}"#, json!({"zone": 2})),
            (r#"{"zone": 2"#, json!({})),
            (r#"{"zone": 2,"#, json!({"zone": 2})),
            (r#"{"zone": 2, "b": tru"#, json!({"zone": 2})),
            (r#"{"a": "x"#, json!({})),
            (r#"{"a": "x""#, json!({"a": "x"})),
            (r#"{"a": "x\", \u00"#, json!({})),
            (
                r#"{"a": ", }", "b": {"c": [1, {}], "d": "x"}"#,
                json!({"a": ", }", "b": {"c": [1, {}], "d": "x"}}),
            ),
            (r#"{"a": [1, 2"#, json!({})),
            (r#"{"a": 1, "b"#, json!({"a": 1})),
            (r#"{"a": 1, "b""#, json!({"a": 1})),
            (r#"{"a": 1, "b":"#, json!({"a": 1})),
            (r#"{"#, json!({})),
            ("", json!({})),
        ] {
            check(arguments, expected);
        }
    }

    #[test]
    fn every_beginning_is_a_part_of_the_whole() {
        let whole = r#"{"a": "x, \"y", "b": [1, {"c": null}], "ü": {"d": true}, "e": -1.5e3}"#;
        let all = input_of(whole);
        for at in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            let part = input_of(&whole[..at]);
            assert!(
                part.iter()
                    .all(|(name, value)| all.get(name) == Some(value)),
                "{at}"
            );
        }
        assert_eq!(all.len(), 4);
    }
}
