//! How figures, names and paths read where people see them.

use std::borrow::Cow;
use std::path::{Component, Path};

/// The number with a comma between each three digits.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.char_indices() {
        if idx > 0 && (digits.len() - idx) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number and the noun, in the singular when it is one.
pub(super) fn count_of(number: u64, singular: &str, plural: &str) -> String {
    let noun = if number == 1 { singular } else { plural };
    format!("{} {noun}", thousands(number))
}

/// The text with control characters escaped, so that no name can move a terminal's cursor or break a line.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// How many components of a source path are shown.
const N_COMPONENTS: usize = 3;

/// The last three components of a source path; the whole path when it has no more.
pub(super) fn short_path(path: &Path) -> String {
    let components: Vec<Component> = path.components().collect();
    let n_hidden = components.len().saturating_sub(N_COMPONENTS);
    let short: std::path::PathBuf = components[n_hidden..].iter().collect();
    printable(&short.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated_by_commas() {
        let texts = [0, 7, 999, 1_000, 1_256, 12_345, 1_000_000, u64::MAX].map(thousands);
        let expected = [
            "0",
            "7",
            "999",
            "1,000",
            "1,256",
            "12,345",
            "1,000,000",
            "18,446,744,073,709,551,615",
        ];
        std::assert_eq!(texts, expected);
    }

    #[test]
    fn one_is_singular() {
        std::assert_eq!(count_of(1, "block", "blocks"), "1 block");
        std::assert_eq!(count_of(1_000, "block", "blocks"), "1,000 blocks");
    }

    #[test]
    fn control_characters_are_escaped_and_others_stay() {
        std::assert_eq!(printable("größe \\ ok"), "größe \\ ok");
        std::assert_eq!(printable("a\nb\u{1b}[31m\u{85}"), "a\\nb\\u{1b}[31m\\u{85}");
    }

    #[test]
    fn paths_keep_their_last_three_components() {
        let short = |path: &str| short_path(Path::new(path));
        std::assert_eq!(short("/home/me/app/src/main.rs"), "app/src/main.rs");
        std::assert_eq!(short("../csu/libc-start.c"), "../csu/libc-start.c");
        std::assert_eq!(short("/a/b"), "/a/b");
        std::assert_eq!(short("/a/b/c"), "a/b/c");
        std::assert_eq!(short("main.rs"), "main.rs");
        std::assert_eq!(
            short("./nptl/./pthread_create.c"),
            "./nptl/pthread_create.c"
        );
        std::assert_eq!(short("new\nline.rs"), "new\\nline.rs");
    }
}
