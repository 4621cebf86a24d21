//! Errors are also read by users of Python and of the program `hexagram`: they must not name options or methods by
//! their Rust paths.

use hexagram_logical::testing;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn no_message_has_a_path_of_rust() {
    let Some(folder) = testing::sources(env!("CARGO_MANIFEST_DIR")) else { return };
    let mut found = Vec::new();
    for file in sources(&folder.join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.extend(lines.flat_map(messages).filter(|message| has_path(message)).map(str::to_owned));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn paths_are_told_from_what_looks_like_them() {
    assert!(has_path("set EngineOptions::optimizer"));
    assert!(has_path("ask for `Needs::parameters`"));
    assert!(!has_path("a graph: a ring"));
    assert!(!has_path("{name}::x"));
}

/// Returns the files below a folder, without tests and their helpers.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let kept =
        entries.filter(|entry| !["tests", "tests.rs", "testing"].iter().any(|name| entry.ends_with(name)));
    kept.flat_map(|entry| if entry.is_dir() { sources(&entry) } else { vec![entry] })
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Returns the strings between quotes in a line.
fn messages(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// Returns true if a text contains a path of a type and one of its items.
fn has_path(text: &str) -> bool {
    let before =
        |at: usize| text[..at].rsplit(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    text.match_indices("::").any(|(at, _)| before(at).starts_with(char::is_uppercase))
}
