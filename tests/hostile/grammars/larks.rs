//! Lark texts.

use std::fmt::Write;

use super::schemas::{guidance, pattern_keys};
use super::{HostileGrammar, joined, letters};

pub(super) fn larks() -> Vec<HostileGrammar> {
    let lark = |name, source| HostileGrammar {
        name,
        kind: "lark",
        source,
    };
    vec![
        lark(
            "lark_left_recursion",
            "start: start start | start \"a\" | \"a\" | \"\"\n".into(),
        ),
        lark("lark_ambiguous", lark_ambiguous(40)),
        lark(
            "lark_ambiguous_triples",
            "start: e\ne: e e e | e e | /[a-z]/\n".into(),
        ),
        // Nearly all rows of this grammar are short.
        lark(
            "lark_ambiguous_beside_cheap",
            "start: (e | /[^z]/)*\ne: e e e | e e | \"z\"\n".into(),
        ),
        lark(
            "lark_hidden_left_recursion",
            "start: e start \"b\" | \"a\"\ne: \"\" | e e | \"c\"\n".into(),
        ),
        lark(
            "lark_complements",
            "start: A\nA: ~(/(a|b)*a(a|b){14}/) & ~(/.*x.{12}y/) & /.*/\n".into(),
        ),
        lark("lark_intersections", lark_intersections(60)),
        lark("lark_terminals_doubled", lark_terminals_doubled(40)),
        lark("lark_rules_doubled", lark_rules_doubled(40)),
        lark(
            "lark_repeats",
            "start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: \"x\"~1..1000\n".into(),
        ),
        lark(
            "lark_terminal_repeats",
            "start: A\nA: B{200}\nB: C{200}\nC: D{200}\nD: \"x\"\n".into(),
        ),
        lark("lark_rules_of_hundreds", lark_rules(900)),
        lark("lark_terminals_of_hundreds", lark_terminals(700)),
        lark("lark_rings", "start: a\na: b\nb: c\nc: a\n".into()),
        lark(
            "lark_schema_inside",
            format!("start: x\nx: %json {}\n", pattern_keys(600)),
        ),
        lark(
            "lark_guidance_inside",
            format!("start: x\nx: %json {}\n", guidance("(a?){300}a{300}")),
        ),
        lark("lark_substrings", lark_substrings(12_000)),
        lark("lark_substring_words", lark_substring_words(2500)),
        lark(
            "lark_options",
            "%llguidance {\"no_forcing\":true,\"allow_invalid_utf8\":true}\nstart: /(.|\\n)*/\n"
                .into(),
        ),
        lark("lark_lazy", "start: A*\nA[lazy]: /.*a.*b.*c.*d/\n".into()),
        lark(
            "lark_suffix",
            "start: a*\na[suffix=/(a|b)*a(a|b){12}/]: /.*/\n".into(),
        ),
        lark(
            "lark_nested_groups",
            format!("start: {}\"a\"{}\n", "(".repeat(1500), ")".repeat(1500)),
        ),
        lark(
            "lark_unicode",
            format!(
                "start: A*\nA: {}\n",
                vec![r"/\p{L}+\P{N}*/"; 300].join(" | ")
            ),
        ),
    ]
}

fn lark_ambiguous(count: usize) -> String {
    let mut text = format!(
        "start: {}\n",
        joined(count, " | ", |n| format!("r{n} r{n}"))
    );
    for n in 0..count {
        writeln!(text, "r{n}: \"a\"* | r{} \"a\"* | \"\"", (n + 1) % count)
            .expect("writing to a string does not fail");
    }
    text
}

fn lark_intersections(count: usize) -> String {
    let parts = joined(count, " & ", |n| {
        format!(
            "/(.|\\n)*[a-{}].*{}/",
            char::from(b'b' + (n % 20) as u8),
            letters(n)
        )
    });
    format!("start: A\nA: {parts}\n")
}

fn lark_terminals_doubled(count: usize) -> String {
    let mut text = String::from("start: T0\n");
    for n in 0..count {
        writeln!(text, "T{n}: T{} T{}", n + 1, n + 1).expect("writing to a string does not fail");
    }
    writeln!(text, "T{count}: \"a\" | \"b\"").expect("writing to a string does not fail");
    text
}

fn lark_rules_doubled(count: usize) -> String {
    lark_terminals_doubled(count).replace('T', "r")
}

fn lark_rules(count: usize) -> String {
    let mut text = format!("start: {}\n", joined(count, " | ", |n| format!("r{n}")));
    for n in 0..count {
        writeln!(text, "r{n}: \"a\"").expect("writing to a string does not fail");
    }
    text
}

fn lark_terminals(count: usize) -> String {
    let mut text = format!("start: ({})*\n", joined(count, " | ", |n| format!("T{n}")));
    for n in 0..count {
        writeln!(text, "T{n}: /{}+/", letters(n)).expect("writing to a string does not fail");
    }
    text
}

fn lark_substrings(bytes: usize) -> String {
    let text = joined(bytes / 3, "", letters);
    format!("start: A\nA: %regex {{\"substring_chars\":\"{text}\"}}\n")
}

fn lark_substring_words(count: usize) -> String {
    let text = joined(count, " ", letters);
    format!("start: A B\nA: %regex {{\"substring_words\":\"{text}\"}}\nB: A A\n")
}
