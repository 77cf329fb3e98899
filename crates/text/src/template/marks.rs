//! The `generation` block of `transformers`.

/// Returns `source` with every `{% generation %}` turned into `{% if true %}`.
///
/// The block marks the assistant's text, for training; it changes no text. A condition that
/// always holds keeps the tags' effect on whitespace.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut output = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        output.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let (tag, after) = tag.split_at(end);
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => name,
        };
        output.push_str(&tag.replacen(name, replacement, 1));
        rest = after;
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        assert_eq!(without_generation_marks(source), expected);
    }

    #[test]
    fn only_generation_marks_change() {
        check(
            "a{%- generation -%} {{ x }}{% endgeneration %}b",
            "a{%- if true -%} {{ x }}{% endif %}b",
        );
        check(
            "{% if add_generation_prompt %}generation{% endif %}",
            "{% if add_generation_prompt %}generation{% endif %}",
        );
        check("{%%}{% x = '%}' %}{% torn", "{%%}{% x = '%}' %}{% torn");
        check("no tags", "no tags");
    }
}
