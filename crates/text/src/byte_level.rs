//! GPT-2's alphabet, in which every byte is a printable character.
//!
//! Radford et al. 2019: bytes that are printable in Latin-1 stand for
//! themselves, the others for U+0100 onwards in their order.

/// Appends the bytes that `text` spells. Returns `false` and leaves `bytes` unchanged if a
/// character is outside the alphabet.
pub(super) fn append_bytes(text: &str, bytes: &mut Vec<u8>) -> bool {
    let before = bytes.len();
    for character in text.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(before);
                return false;
            }
        }
    }
    true
}

fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn alphabet_matches_gpt_2() {
        let mut seen = [false; 256];
        let alphabet = ByteLevel::alphabet();
        for code in (0..0x200).filter_map(char::from_u32) {
            assert_eq!(
                byte_of(code).is_some(),
                alphabet.contains(&code),
                "{code:?}"
            );
            if let Some(byte) = byte_of(code) {
                seen[usize::from(byte)] = true;
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        let known = [
            ('Ġ', b' '),
            ('Ċ', b'\n'),
            ('ł', 0xa0),
            ('Ń', 0xad),
            ('ġ', 0x7f),
        ];
        for (character, byte) in known {
            assert_eq!(byte_of(character), Some(byte));
        }
    }
}
