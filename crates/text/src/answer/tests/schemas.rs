//! Random tools.

use serde_json::{Map, Value, json};

use crate::answer::{Tool, Tools};

/// Random numbers of a seed (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % end as u64) as usize
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const NAMES: [&str; 8] = [
    "a",
    "city",
    "the_key",
    "x-y",
    "Größe",
    "with \"quotes\"",
    "b\\c",
    "7",
];

/// One to three tools. In every second set, some are strict.
pub(super) fn tools(random: &mut Random) -> Tools {
    let count = 1 + random.below(3);
    let tools = (0..count).map(|number| Tool {
        name: ["get_a", "B-2", "find"][number].to_owned(),
        description: random.one_in(2).then(|| "Does it.".to_owned()),
        parameters: parameters(random),
        is_strict: number == 0 || random.one_in(2),
    });
    Tools::new(tools.collect()).expect("they are valid")
}

fn parameters(random: &mut Random) -> Value {
    let mut root = object(random, 0);
    if random.one_in(5) {
        root["$defs"] = json!({"part": object(random, 2)});
        root["properties"]["of_part"] = json!({"$ref": "#/$defs/part"});
    }
    root
}

fn object(random: &mut Random, depth: usize) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..random.below(4) {
        let name = NAMES[random.below(NAMES.len())];
        properties.insert(name.to_owned(), schema(random, depth + 1));
        if random.one_in(2) && !required.contains(&name) {
            required.push(name);
        }
    }
    let mut object = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if random.one_in(3) {
        object["additionalProperties"] = json!(false);
    }
    object
}

fn schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth < 3 { 12 } else { 9 };
    match random.below(kinds) {
        0 => json!({"type": "string", "maxLength": 1 + random.below(12)}),
        1 => json!({"type": "string", "description": "a string"}),
        2 => json!({"enum": ["one", "zwei é", "3 \"three\"", 4, null]}),
        3 => json!({"type": "string", "pattern": "^[a-c]{2,4}-[0-9]$"}),
        4 => json!({"type": "integer", "minimum": -5, "maximum": 300}),
        5 => json!({"type": "number", "minimum": 0}),
        6 => json!({"type": ["boolean", "null"]}),
        7 => json!({"const": {"k": [1, "x"]}}),
        8 => json!({"type": "string", "format": "date"}),
        9 => json!({"type": "array", "items": schema(random, depth + 1), "maxItems": 3}),
        10 => json!({"anyOf": [schema(random, depth + 1), {"type": "null"}]}),
        _ => object(random, depth),
    }
}
