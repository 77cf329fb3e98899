//! Weights by a formula of a tensor's name: the generators of `tests/parity`, whose tables give the
//! constants. `formula.py` there is the same in Python.

/// `count` numbers `offset + q / 2^(bits - 1) * 2^exponent`: q is a signed integer of `bits` bits,
/// the upper bits of the numbers of SplitMix64 seeded with FNV-1a of `name`.
#[must_use]
pub fn numbers(name: &str, count: usize, bits: u32, exponent: i32, offset: f64) -> Vec<f32> {
    let half = f64::from(1 << (bits - 1));
    let scale = f64::from(exponent).exp2();
    upper_bits(name, bits, count)
        .map(|upper| (offset + (upper as f64 - half) / half * scale) as f32)
        .collect()
}

/// `count` bytes: `offset` plus the upper `bits` bits of the same numbers.
#[must_use]
pub fn bytes(name: &str, count: usize, bits: u32, offset: f64) -> Vec<u8> {
    upper_bits(name, bits, count)
        .map(|upper| (upper as f64 + offset) as u8)
        .collect()
}

/// The numbers as a file holds them.
#[must_use]
pub fn little_endian(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn upper_bits(name: &str, bits: u32, count: usize) -> impl Iterator<Item = u64> {
    split_mix(fnv1a(name))
        .take(count)
        .map(move |number| number >> (64 - bits))
}

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn split_mix(seed: u64) -> impl Iterator<Item = u64> {
    (1_u64..).map(move |index| {
        let mut z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Published test vectors of both generators.
#[test]
fn the_generators_are_the_published_ones() {
    let numbers: Vec<u64> = split_mix(1_234_567).take(3).collect();
    let published = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    assert_eq!(numbers, published);
    assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
}
