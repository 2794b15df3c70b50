//! A tree of JSON values: parsed, written and dropped.

use crate::Prepared;
use crate::random::Random;
use serde_json::{Map, Value};
use std::hint::black_box;

/// Parses a generated document, writes it to a string and drops both; `n` times.
pub fn json_tree(n: usize) -> Prepared {
    let mut random = Random::new(3);
    let document = Value::Array((0..400).map(|_| value(&mut random, 5)).collect()).to_string();
    Box::new(move || {
        let mut n_bytes = 0;
        for _ in 0..n {
            let tree: Value = serde_json::from_str(&document).expect("it is valid");
            n_bytes += black_box(&tree).to_string().len();
        }
        Box::new(n_bytes)
    })
}

fn value(random: &mut Random, n_levels: u32) -> Value {
    match random.below(if n_levels == 0 { 4 } else { 8 }) {
        0 => Value::Bool(random.below(2) == 0),
        1 => Value::from(random.next() as f64 / 1e9),
        2 | 3 => Value::String(text(random)),
        4 | 5 => {
            let n_elements = random.below(6);
            Value::Array(
                (0..n_elements)
                    .map(|_| value(random, n_levels - 1))
                    .collect(),
            )
        }
        _ => {
            let n_members = random.below(8);
            let members: Map<String, Value> = (0..n_members)
                .map(|_| (text(random), value(random, n_levels - 1)))
                .collect();
            Value::Object(members)
        }
    }
}

fn text(random: &mut Random) -> String {
    let n_chars = 3 + random.below(20);
    (0..n_chars)
        .map(|_| char::from(b'a' + random.below(26) as u8))
        .collect()
}
