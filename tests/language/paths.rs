//! Finds the paths that a source names, so that what may not be named is found however it is imported: in nested
//! groups, under another name, over several lines, or relative to the module.

use crate::source::Source;

/// A path that a source names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Line on which it begins, from 1.
    pub(crate) line: usize,
    /// Names from left to right; a glob import ends with `*`.
    pub(crate) path: Vec<String>,
}

impl Named {
    /// Returns the path with its separators.
    pub(crate) fn text(&self) -> String {
        self.path.join("::")
    }
}

/// Returns every path of two names or more, and every import. Paths that begin with an imported name are given as they
/// are and from the root of what was imported.
pub(crate) fn named(source: &Source) -> Vec<Named> {
    let mut found = Vec::new();
    let mut imports: Vec<(String, Vec<String>)> = Vec::new();
    let words = words(&source.code);
    let breaks: Vec<usize> = source.code.match_indices('\n').map(|(at, _)| at).collect();
    let mut at = 0;
    while at < words.len() {
        let line = || 1 + breaks.partition_point(|end| *end < words[at].0);
        let before = at.checked_sub(1).map(|before| words[before].1);
        let end = match words[at].1 {
            "use" => tree(&words, at + 1, &[], &mut |path, name| {
                let is_module = path.last().is_some_and(|last| last == "self");
                let path = &path[..path.len() - usize::from(is_module)];
                if let Some(last) = path.last() {
                    imports.push((name.unwrap_or(last).to_owned(), path.to_vec()));
                    found.push(Named { line: line(), path: path.to_vec() });
                }
            }),
            word if is_name(word) && before != Some("::") => {
                let (path, end) = path(&words, at);
                if path.len() > 1 {
                    found.push(Named { line: line(), path });
                }
                end
            }
            _ => at + 1,
        };
        at = end.max(at + 1);
    }
    let from_root = |named: &Named| {
        let (_, whole) =
            imports.iter().find(|(name, whole)| named.path.first() == Some(name) && whole != &named.path)?;
        let path = whole.iter().chain(&named.path[1..]).cloned().collect();
        Some(Named { line: named.line, path })
    };
    let more: Vec<Named> = found.iter().filter_map(from_root).collect();
    found.extend(more);
    found
}

/// Returns a path as one from the root of its crate, of which `file` is a source below `src`; nothing for one of
/// another crate.
pub(crate) fn within_crate(path: &[String], file: &str) -> Option<Vec<String>> {
    let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    let mut rest = path;
    match rest.first().map(String::as_str)? {
        "crate" => return Some(rest[1..].to_vec()),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|first| first == "super") {
                rest = &rest[1..];
                module.pop();
            }
        }
        _ => return None,
    }
    Some(module.into_iter().chain(rest.iter().cloned()).collect())
}

/// Reads the import that begins at `at`, calls `leaf` with each path and what it is called, and returns where it ends.
fn tree(
    words: &[(usize, &str)],
    at: usize,
    above: &[String],
    leaf: &mut impl FnMut(&[String], Option<&str>),
) -> usize {
    let word = |at: usize| words.get(at).map_or("", |(_, word)| word);
    let (own, mut at) = path(words, at);
    let whole: Vec<String> = above.iter().cloned().chain(own).collect();
    match word(at) {
        "{" => {
            at += 1;
            while !["}", ";", ""].contains(&word(at)) {
                at = tree(words, at, &whole, leaf).max(at + 1);
                at += usize::from(word(at) == ",");
            }
            at + 1
        }
        "as" => {
            leaf(&whole, Some(word(at + 1)));
            at + 2
        }
        _ => {
            leaf(&whole, None);
            at
        }
    }
}

/// Reads the names of the path that begins at `at`, and returns where it ends.
fn path(words: &[(usize, &str)], mut at: usize) -> (Vec<String>, usize) {
    let mut names = Vec::new();
    let word = |at: usize| words.get(at).map_or("", |(_, word)| word);
    at += usize::from(word(at) == "::");
    while is_name(word(at)) || word(at) == "*" {
        names.push(word(at).to_owned());
        at += 1;
        if word(at) != "::" || !(is_name(word(at + 1)) || ["*", "{"].contains(&word(at + 1))) {
            break;
        }
        at += 1;
    }
    (names, at)
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Splits code into names, `::` and single characters, each with where it is.
fn words(code: &str) -> Vec<(usize, &str)> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = if is_word(first) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() {
            found.push((at, &rest[..length]));
        }
        at += length;
    }
    found
}
