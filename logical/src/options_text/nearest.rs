//! The known names that are nearest to an unknown one.

use super::tree::excerpt;
use crate::Error;

/// Returns those of `names` with the most similar spelling to `word`, at most three, the nearest first; empty if none
/// is near. Names that begin with the word, if it has three characters or more, come first.
///
/// ```
/// use hexagram_logical::options_text::nearest;
///
/// assert_eq!(nearest("chocosgd", ["choco-sgd", "d-psgd", "slowmo"]), ["choco-sgd"]);
/// assert_eq!(nearest("choco", ["loco", "choco-sgd"]), ["choco-sgd", "loco"]);
/// ```
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    nearest_of(word, &names.into_iter().collect::<Vec<_>>())
}

fn nearest_of<'a>(word: &str, names: &[&'a str]) -> Vec<&'a str> {
    let word: Vec<char> = word.chars().take(64).map(|char| char.to_ascii_lowercase()).collect();
    let mut near: Vec<(usize, &str)> = names
        .iter()
        .copied()
        .map(|name| (distance_of(&word, &name.chars().collect::<Vec<_>>()), name))
        .filter(|(distance, name)| *distance <= 1 + name.chars().count().min(word.len()) / 3)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Creates the error for an unknown name: with the nearest names, or with all names if none is near.
pub fn no_such<'a>(what: &str, word: &str, names: impl IntoIterator<Item = &'a str>) -> Error {
    no_such_of(what, word, &names.into_iter().collect::<Vec<_>>())
}

fn no_such_of(what: &str, word: &str, names: &[&str]) -> Error {
    let near = nearest_of(word, names);
    let remedy = match near.as_slice() {
        [] if names.is_empty() => "use none".to_owned(),
        [] => format!("use one of {}", names.join(", ")),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Error::usage(format!("unknown {what} `{}`", excerpt(word)), remedy)
}

/// Returns the distance of a name from a word: 0 if it begins with the word, otherwise the Levenshtein distance.
fn distance_of(word: &[char], name: &[char]) -> usize {
    if word.len() >= 3 && name.starts_with(word) { 0 } else { distance(word, name) }
}

/// Returns the Levenshtein distance: the number of characters to add, remove or replace.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.iter().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (place, b) in to.iter().enumerate() {
            let replaced = corner + usize::from(a != b);
            corner = row[place + 1];
            row[place + 1] = replaced.min(corner + 1).min(row[place] + 1);
        }
    }
    row[to.len()]
}
