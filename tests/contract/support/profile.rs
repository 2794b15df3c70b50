//! A saved profile as the tests read it: fields in the file's order, program points with their frames.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// A JSON object with its keys in order.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[derive(serde::Deserialize)]
struct Lists {
    pps: Vec<Fields>,
    ftbl: Vec<String>,
}

/// One entry of the frame table, taken apart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Frame {
    pub(crate) ip: u64,
    pub(crate) function: String,
    /// `path:line:column`.
    pub(crate) location: String,
}

impl Frame {
    /// Takes `0xIP: function (path:line:column)` apart.
    fn parse(text: &str) -> Frame {
        let parts = || {
            let (ip, rest) = text.strip_prefix("0x")?.split_once(": ")?;
            let (function, location) = rest.strip_suffix(')')?.rsplit_once(" (")?;
            let ip = u64::from_str_radix(ip, 16).ok()?;
            let mut numbers = location.rsplitn(3, ':');
            numbers.next()?.parse::<u32>().ok()?;
            numbers.next()?.parse::<u32>().ok()?;
            numbers.next()?;
            Some(Frame {
                ip,
                function: function.to_owned(),
                location: location.to_owned(),
            })
        };
        parts().unwrap_or_else(|| panic!("not a frame: {text}"))
    }
}

/// The figures of a program point except for times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Figures {
    pub(crate) tb: u64,
    pub(crate) tbk: u64,
    pub(crate) mb: u64,
    pub(crate) mbk: u64,
    pub(crate) gb: u64,
    pub(crate) gbk: u64,
    pub(crate) eb: u64,
    pub(crate) ebk: u64,
}

impl Figures {
    /// In the order of the file: totals, point's peak, at t-gmax, at the end; bytes before blocks.
    pub(crate) fn list(&self) -> [u64; 8] {
        [
            self.tb, self.tbk, self.mb, self.mbk, self.gb, self.gbk, self.eb, self.ebk,
        ]
    }
}

/// A program point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) keys: Vec<String>,
    pub(crate) figures: Figures,
    /// Total lifetime in microseconds; 0 in ad hoc mode.
    pub(crate) tl: u64,
    /// Innermost first.
    pub(crate) frames: Vec<Frame>,
}

/// A saved profile.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) fields: Vec<(String, Value)>,
    pub(crate) points: Vec<Point>,
    /// The frame table as text.
    pub(crate) ftbl: Vec<String>,
}

impl Profile {
    pub(crate) fn parse(text: &str) -> Profile {
        let Fields(fields) = serde_json::from_str(text).expect("a profile is one JSON object");
        // Once more, for the order of the keys inside.
        let Lists { pps, ftbl } =
            serde_json::from_str(text).expect("pps are objects, ftbl is strings");
        let points = pps.into_iter().map(|Fields(pp)| point(pp, &ftbl)).collect();
        Profile {
            fields,
            points,
            ftbl,
        }
    }

    pub(crate) fn field(&self, key: &str) -> &Value {
        let found = self.fields.iter().find(|(name, _)| name == key);
        &found.unwrap_or_else(|| panic!("no field {key}")).1
    }

    /// The one program point with a frame in a function whose name contains `function`.
    pub(crate) fn at(&self, function: &str) -> &Point {
        self.only(function, |frame| frame.function.contains(function))
    }

    /// The one program point with a frame at `path:line`, in any column.
    pub(crate) fn at_line(&self, path: &str, line: u64) -> &Point {
        let start = format!("{path}:{line}:");
        self.only(&start, |frame| frame.location.starts_with(&start))
    }

    fn only(&self, what: &str, matches: impl Fn(&Frame) -> bool) -> &Point {
        let found: Vec<&Point> = self
            .points
            .iter()
            .filter(|point| point.frames.iter().any(&matches))
            .collect();
        match found[..] {
            [point] => point,
            _ => panic!(
                "{} program points with {what}: {found:#?}\nof\n{:#?}",
                found.len(),
                self.ftbl
            ),
        }
    }

    /// Whether a frame's text contains `part`.
    pub(crate) fn has_frame(&self, part: &str) -> bool {
        self.ftbl.iter().any(|frame| frame.contains(part))
    }

    /// The sum over all program points; the peaks of single points make no sense in it.
    pub(crate) fn sums(&self) -> Figures {
        self.points
            .iter()
            .fold(Figures::default(), |sum, point| sum + point.figures)
    }
}

impl std::ops::Add for Figures {
    type Output = Figures;

    fn add(self, other: Figures) -> Figures {
        Figures {
            tb: self.tb + other.tb,
            tbk: self.tbk + other.tbk,
            mb: self.mb + other.mb,
            mbk: self.mbk + other.mbk,
            gb: self.gb + other.gb,
            gbk: self.gbk + other.gbk,
            eb: self.eb + other.eb,
            ebk: self.ebk + other.ebk,
        }
    }
}

fn point(fields: Vec<(String, Value)>, ftbl: &[String]) -> Point {
    let number = |key: &str| {
        let value = fields
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value);
        value.map_or(0, |value| {
            value.as_u64().unwrap_or_else(|| panic!("{key} is {value}"))
        })
    };
    let (_, frames) = fields
        .iter()
        .find(|(name, _)| name == "fs")
        .expect("a point has frames");
    let frames = frames.as_array().expect("fs is a list").iter().map(|idx| {
        let idx = idx.as_u64().expect("an index") as usize;
        assert_ne!(idx, 0, "[root] is no frame");
        Frame::parse(&ftbl[idx])
    });
    Point {
        figures: Figures {
            tb: number("tb"),
            tbk: number("tbk"),
            mb: number("mb"),
            mbk: number("mbk"),
            gb: number("gb"),
            gbk: number("gbk"),
            eb: number("eb"),
            ebk: number("ebk"),
        },
        tl: number("tl"),
        frames: frames.collect(),
        keys: fields.iter().map(|(key, _)| key.clone()).collect(),
    }
}
