//! Names and paths: demangled, made harmless to print, and shared between the frames that bear them.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

/// Longer mangled names are not demangled: the time that takes is not linear in their length.
const MAX_MANGLED_BYTES: usize = 32 << 10;
/// Longer names are cut.
const MAX_NAME_BYTES: usize = 64 << 10;

/// The names met so far, so that each is demangled and stored once.
#[derive(Default)]
pub(super) struct Names {
    functions: HashMap<Box<[u8]>, Rc<str>>,
    files: HashMap<String, Rc<PathBuf>>,
}

impl Names {
    /// Returns the readable form of a function's linkage or source name; `None` for an empty name.
    pub(super) fn function(&mut self, raw: &[u8]) -> Option<Rc<str>> {
        if raw.is_empty() {
            return None;
        }
        if let Some(name) = self.functions.get(raw) {
            return Some(Rc::clone(name));
        }
        let name: Rc<str> = printable(&demangle(raw)).into();
        self.functions.insert(raw.into(), Rc::clone(&name));
        Some(name)
    }

    /// Returns the shared form of a path; `None` for an empty one.
    pub(super) fn file(&mut self, path: &str) -> Option<Rc<PathBuf>> {
        if path.is_empty() {
            return None;
        }
        if let Some(file) = self.files.get(path) {
            return Some(Rc::clone(file));
        }
        let file = Rc::new(PathBuf::from(printable(path)));
        self.files.insert(path.to_owned(), Rc::clone(&file));
        Some(file)
    }
}

/// Demangles a Rust (legacy or v0, without hash) or C++ name; others stay as they are.
fn demangle(raw: &[u8]) -> String {
    let raw = String::from_utf8_lossy(&raw[..raw.len().min(MAX_NAME_BYTES)]);
    if raw.len() > MAX_MANGLED_BYTES || !raw.starts_with('_') {
        return raw.into_owned();
    }
    let mangled = raw.trim_start_matches('_');
    let mut out = Bounded(String::new());
    if mangled.starts_with('R') || mangled.starts_with("ZN") {
        if let Ok(name) = rustc_demangle::try_demangle(&raw) {
            if write!(out, "{name:#}").is_ok() {
                return out.0;
            }
            out.0.clear();
        }
    }
    if mangled.starts_with('Z') {
        if let Ok(symbol) = cpp_demangle::Symbol::new(raw.as_bytes()) {
            let options = cpp_demangle::DemangleOptions::default();
            if symbol.structured_demangle(&mut out, &options).is_ok() && !out.0.is_empty() {
                return out.0;
            }
        }
    }
    raw.into_owned()
}

/// A string that refuses to grow beyond [`MAX_NAME_BYTES`]: a short mangled name can stand for an enormous one.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > MAX_NAME_BYTES - self.0.len() {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Replaces what would steer a terminal or reorder the text around it (Unicode Standard Annex 9, explicit
/// directional formatting characters).
fn printable(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                '\u{fffd}'
            }
            _ if character.is_control() => '\u{fffd}',
            _ => character,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(raw: &str) -> String {
        Names::default()
            .function(raw.as_bytes())
            .unwrap()
            .to_string()
    }

    #[test]
    fn rust_names_lose_their_hash() {
        std::assert_eq!(
            readable("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        std::assert_eq!(readable("_RNvCskwGfYPst2Cb_3foo3bar"), "foo::bar");
        std::assert_eq!(
            readable("_ZN3foo3bar17h0123456789abcdefE.llvm.12345"),
            "foo::bar"
        );
    }

    #[test]
    fn cpp_names_are_demangled_and_others_kept() {
        std::assert_eq!(readable("_ZN3foo3barEi"), "foo::bar(int)");
        std::assert_eq!(readable("_Z3addii"), "add(int, int)");
        std::assert_eq!(readable("malloc"), "malloc");
        std::assert_eq!(readable("_Zweird"), "_Zweird");
        std::assert_eq!(readable("Replace"), "Replace");
    }

    #[test]
    fn equal_names_are_stored_once() {
        let mut names = Names::default();
        let first = names.function(b"_Z3addii").unwrap();
        let second = names.function(b"_Z3addii").unwrap();
        std::assert!(Rc::ptr_eq(&first, &second));
        std::assert!(names.function(b"").is_none());
    }

    #[test]
    fn controls_and_direction_overrides_are_replaced() {
        std::assert_eq!(
            readable("a\x1b[31mb\u{202e}c\nd"),
            "a\u{fffd}[31mb\u{fffd}c\u{fffd}d"
        );
        std::assert_eq!(
            Names::default().function(b"a\xffb").as_deref(),
            Some("a\u{fffd}b")
        );
    }

    #[test]
    fn enormous_names_are_cut_and_never_expanded() {
        std::assert_eq!(readable(&"x".repeat(100_000)).len(), MAX_NAME_BYTES);
        // Each substitution doubles the type: 2^40 pairs, were it written out.
        let mut doubling = String::from("_Z1fSt4pairIiiE");
        for depth in 0..40 {
            let seq = match depth {
                0 => "S_".to_owned(),
                _ => format!("S{}_", std::char::from_digit(depth - 1, 36).unwrap_or('0')),
            };
            write!(doubling, "St4pairI{seq}{seq}E").unwrap();
        }
        std::assert!(readable(&doubling).len() <= MAX_NAME_BYTES);
    }
}
