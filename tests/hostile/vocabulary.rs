//! A vocabulary as large as a model's, for the hostile corpus. It needs no tokenizer file.

/// Returns 40,000 tokens: every byte, then the most common kinds of token: words with and without a space before them,
/// numbers, and the parts of JSON. The first token has no text and ends outputs.
pub(crate) fn tokens() -> Vec<Vec<u8>> {
    let letters: Vec<String> = (b'a'..=b'z').map(|byte| char::from(byte).into()).collect();
    let mut words = letters.clone();
    let mut last = letters.clone();
    for _ in 0..2 {
        let longer = last
            .iter()
            .flat_map(|word| letters.iter().map(move |letter| format!("{word}{letter}")));
        last = longer.collect();
        words.extend(last.iter().cloned());
    }
    let mut tokens = vec![Vec::new()];
    tokens.extend((0..=255u8).map(|byte| vec![byte]));
    tokens.extend(words.iter().map(|word| word.clone().into_bytes()));
    tokens.extend(words.iter().map(|word| format!(" {word}").into_bytes()));
    tokens.extend((10..1000).map(|number: usize| number.to_string().into_bytes()));
    let punctuation = [
        "{\"", "\":", "\": \"", "\",", "\", \"", "},", "}}", "[{", "}]", "[]", "{}", "\":{\"",
        "true", "false", "null",
    ];
    tokens.extend(punctuation.map(|text| text.as_bytes().to_vec()));
    for spaces in 2..32 {
        tokens.push(vec![b' '; spaces]);
        tokens.push([b"\n".as_slice(), &vec![b' '; spaces]].concat());
    }
    for wide in [
        "é", "ü", "ß", "и", "中", "文", "日本", "한", "ا", "😀", "…", "—", " é", " и", " 中",
    ] {
        tokens.push(wide.as_bytes().to_vec());
    }
    tokens
}
