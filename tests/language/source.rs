//! Reads Rust just well enough to count: where code, comments and blocks are. No parser of the language.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One file: its text, the same with strings and comments blanked out, its blocks, and its documentation.
pub(crate) struct Source {
    /// Path from the root of the repository.
    pub(crate) path: String,
    /// The text without what is in strings and comments, byte for byte as long as the file.
    pub(crate) code: String,
    /// First lines of documentation comments, in order.
    pub(crate) docs: Vec<Doc>,
    /// Everything in braces, and every item that ends with a semicolon.
    pub(crate) items: Vec<Item>,
    /// Number of lines.
    pub(crate) lines: usize,
}

/// A documentation comment.
pub(crate) struct Doc {
    /// Line on which it begins, from 1.
    pub(crate) line: usize,
    /// Its first line.
    pub(crate) first: String,
    /// Where the code after it begins; the file's length for documentation of the file itself.
    pub(crate) end: usize,
}

/// An item, or another block in braces.
pub(crate) struct Item {
    /// Where the item begins, without the space before it.
    pub(crate) start: usize,
    /// What stands before the brace or the semicolon, in words, without attributes.
    pub(crate) head: Vec<String>,
    /// What the braces enclose, if there are any.
    pub(crate) body: Option<Range<usize>>,
    /// The item around it, as an index among the items.
    pub(crate) parent: Option<usize>,
}

impl Source {
    /// Reads `text`; what is compiled for tests only counts as blank.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (mut code, docs) = blank(text);
        while let Some(test) = test_item(&code) {
            blank_out(&mut code, test);
        }
        Self::of(path, text, code, docs)
    }

    /// Reads `text`, with its tests.
    pub(crate) fn whole(path: &str, text: &str) -> Self {
        let (code, docs) = blank(text);
        Self::of(path, text, code, docs)
    }

    fn of(path: &str, text: &str, code: Vec<u8>, docs: Vec<Doc>) -> Self {
        let code = String::from_utf8(code).unwrap_or_default();
        let docs =
            docs.into_iter().filter(|doc| doc.end >= text.len() || !is_blank_from(&code, doc)).collect();
        let items = items(&code);
        Source { path: path.to_owned(), code, docs, items, lines: text.lines().count() }
    }

    /// Returns the line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.code.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
    }
}

impl Item {
    /// Returns the words after visibility and qualifiers: `fn name`, `struct Name`, …
    pub(crate) fn declares(&self) -> &[String] {
        const BEFORE: [&str; 6] = ["async", "unsafe", "extern", "default", "crate", "super"];
        let mut words = &self.head[..];
        while let [first, rest @ ..] = words {
            let is_qualified_const = first == "const"
                && matches!(rest, [next, ..] if ["fn", "unsafe", "async"].contains(&next.as_str()));
            if first == "pub" && rest.first().is_some_and(|next| next == "(") {
                let close = rest.iter().position(|word| word == ")").map_or(rest.len(), |at| at + 1);
                words = &rest[close..];
            } else if first == "pub"
                || is_qualified_const
                || BEFORE.contains(&first.as_str())
                || first == "\""
            {
                words = rest;
            } else {
                break;
            }
        }
        words
    }

    /// Returns the name, if this is an item of the kind `keyword`.
    pub(crate) fn name_of(&self, keyword: &str) -> Option<&str> {
        match self.declares() {
            [first, name, ..] if first == keyword && is_name(name) => Some(name),
            _ => None,
        }
    }

    /// Returns true for `pub`, and not for `pub(crate)`.
    pub(crate) fn is_public(&self) -> bool {
        matches!(&self.head[..], [first, rest @ ..] if first == "pub" && rest.first().is_none_or(|next| next != "("))
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Blanks strings and comments, and collects documentation.
fn blank(text: &str) -> (Vec<u8>, Vec<Doc>) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut docs: Vec<Doc> = Vec::new();
    let mut at = 0;
    // The kind of documentation and the line on which it goes on.
    let mut open: Option<(&str, usize)> = None;
    let mut line = 1;
    while at < bytes.len() {
        let rest = &text[at..];
        let end = at + token(rest);
        if let Some(kind) =
            ["///", "//!"].into_iter().find(|kind| rest.starts_with(kind) && !rest.starts_with("////"))
        {
            if open != Some((kind, line)) {
                let first = rest[3..end - at].trim().to_owned();
                docs.push(Doc { line, first, end: 0 });
            }
            open = Some((kind, line + 1));
            if let Some(doc) = docs.last_mut() {
                doc.end = if kind == "///" { end } else { text.len() };
            }
        }
        line += rest[..end - at].matches('\n').count();
        if end - at > 1 {
            blank_out(&mut code, at..end);
        }
        at = end;
    }
    (code, docs)
}

/// The length of a comment, a string or a character at the beginning of `rest`; otherwise that of one character.
fn token(rest: &str) -> usize {
    let one = rest.chars().next().map_or(1, char::len_utf8);
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |end| end + 2);
    }
    if let Some(raw) = ["r", "br", "cr"].into_iter().find_map(|prefix| raw_string(rest, prefix)) {
        return raw;
    }
    if let Some(inner) = rest.strip_prefix('"') {
        return 1 + escaped(inner, '"');
    }
    if let Some(inner) = rest.strip_prefix('\'') {
        // Not a lifetime.
        let mut letters = inner.chars();
        let first = letters.next();
        if first == Some('\\') || letters.next() == Some('\'') {
            return 1 + escaped(inner, '\'');
        }
    }
    one
}

/// The length up to the `quote` that no backslash escapes.
fn escaped(inner: &str, quote: char) -> usize {
    let mut skip = false;
    for (at, letter) in inner.char_indices() {
        if skip {
            skip = false;
        } else if letter == '\\' {
            skip = true;
        } else if letter == quote {
            return at + quote.len_utf8();
        }
    }
    inner.len()
}

fn raw_string(rest: &str, prefix: &str) -> Option<usize> {
    let inner = rest.strip_prefix(prefix)?;
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    let opened = inner[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let before = prefix.len() + hashes + 1;
    Some(opened.find(&close).map_or(rest.len(), |end| before + end + close.len()))
}

/// Overwrites everything but line breaks with blanks.
fn blank_out(code: &mut [u8], range: Range<usize>) {
    for byte in &mut code[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// The next item that is compiled for tests only, with its attributes.
fn test_item(code: &[u8]) -> Option<Range<usize>> {
    const MARKS: [&str; 5] =
        ["#[cfg(test)]", "#[test]", "#[cfg(all(test", "#[cfg(any(test", "#[cfg(hexagram_loom"];
    let text = str::from_utf8(code).ok()?;
    let start = MARKS.iter().filter_map(|mark| text.find(mark)).min()?;
    let mut depth = 0usize;
    for (at, byte) in code.iter().enumerate().skip(start) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' if depth == 1 => return Some(start..at + 1),
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            b';' | b',' if depth == 0 => return Some(start..at + 1),
            _ => {}
        }
    }
    Some(start..code.len())
}

/// Whether nothing but blanks follows a comment on the lines where its item was: it was blanked out as a test's.
fn is_blank_from(code: &str, doc: &Doc) -> bool {
    let mut lines = code[doc.end..].lines().skip(1);
    lines.next().is_none_or(|line| line.trim().is_empty())
}

/// Finds all blocks, and all items without one.
fn items(code: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut start = 0;
    let mut parentheses = 0usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' => parentheses += 1,
            b')' | b']' => parentheses = parentheses.saturating_sub(1),
            b'{' => {
                items.push(item(code, start..at, open.last().map(|(index, _)| *index)));
                open.push((items.len() - 1, parentheses));
                parentheses = 0;
                start = at + 1;
            }
            b'}' => {
                if let Some((index, outer)) = open.pop() {
                    parentheses = outer;
                    let body: &mut Item = &mut items[index];
                    body.body = body.body.as_ref().map(|range| range.start..at);
                }
                start = at + 1;
            }
            b';' if parentheses == 0 => {
                let parent = open.last().map(|(index, _)| *index);
                items.push(Item { body: None, ..item(code, start..at, parent) });
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

fn item(code: &str, range: Range<usize>, parent: Option<usize>) -> Item {
    let mut head = &code[range.clone()];
    loop {
        head = head.trim_start();
        match head.strip_prefix("#[").or_else(|| head.strip_prefix("#![")) {
            Some(attribute) => head = &attribute[closing(attribute)..],
            None => break,
        }
    }
    let start = range.end - head.len();
    Item { start, head: words(head), body: Some(range.end + 1..code.len()), parent }
}

/// Where the bracket that is open at the beginning of `text` has been closed.
pub(crate) fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

fn words(head: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut within = false;
    for letter in head.chars() {
        let is_word = letter.is_alphanumeric() || letter == '_';
        match words.last_mut() {
            Some(word) if is_word && within => word.push(letter),
            _ if letter.is_whitespace() => {}
            _ => words.push(letter.to_string()),
        }
        within = is_word;
    }
    words
}

/// The files of modules that `file` has for tests only.
pub(crate) fn test_modules(text: &str, file: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        let declared = line.rsplit_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
        if let Some(name) = declared.filter(|_| is_test) {
            let stem = file.file_stem().unwrap().to_str().unwrap();
            let beside = file.parent().unwrap();
            let folder =
                if ["mod", "lib", "main"].contains(&stem) { beside.into() } else { beside.join(stem) };
            found.extend([folder.join(name).with_extension("rs"), folder.join(name).join("mod.rs")]);
        }
        let is_attribute = line.starts_with("#[");
        is_test = line.starts_with("#[cfg(test")
            || line.starts_with("#[cfg(all(test")
            || line.starts_with("#[cfg(any(test")
            || (is_test && is_attribute);
    }
    found
}

/// Every Rust file below `folder`, in order; none if there is no such folder.
pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
    sources_in(folder, &|_| true)
}

/// Every Rust file below `folder`, in order, without those of folders that `is_entered` refuses.
pub(crate) fn sources_in(folder: &Path, is_entered: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut entries: Vec<_> = entries.collect();
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() && is_entered(&entry) {
            found.extend(sources_in(&entry, is_entered));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}
