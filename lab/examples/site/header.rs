//! The first lines of an algorithm's source file, which state its update rule. Presets share a file: they have a section
//! there, or are described along with the others.

use super::ROOT;
use hexagram_lab::run::RunError;
use std::fs;
use std::path::Path;

/// Header of an algorithm.
pub(super) struct Header {
    /// Module with the algorithm.
    pub(super) module: String,
    /// Text in Markdown, without the links of rustdoc.
    pub(super) text: String,
}

/// Returns the header of an algorithm.
///
/// # Errors
/// No source file is about it.
pub(super) fn of(name: &str) -> Result<Header, RunError> {
    let plain = |name: &str| name.replace(['-', '_'], "");
    let headers = all()?;
    let sections =
        |header: &Header| -> Vec<String> { header.text.split("\n# ").map(str::to_owned).collect() };
    if let Some(found) = headers.iter().find(|header| plain(&header.module) == plain(name)) {
        return Ok(Header { module: found.module.clone(), text: sections(found).remove(0) });
    }
    for header in &headers {
        let sections = sections(header);
        let own = sections.iter().find(|section| section.starts_with(&format!("`{name}`\n")));
        if let Some(own) = own {
            // A section without a rule changes the rule of the file.
            let text = match own.split_once("\n\n") {
                Some((_, text)) if text.contains("```text") => text.to_owned(),
                _ => format!("{}\n### {own}", sections[0]),
            };
            return Ok(Header { module: header.module.clone(), text });
        }
    }
    let base = name.strip_prefix("compressed-").or(name.strip_suffix("-8bit"));
    of(base.ok_or_else(|| format!("algorithms/src has no file about {name}"))?)
}

/// Returns the headers of all source files.
fn all() -> Result<Vec<Header>, RunError> {
    let mut headers = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join("algorithms/src"))? {
        let path = entry?.path();
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = if path.is_dir() { path.join("mod.rs") } else { path };
        if file.extension().is_some_and(|extension| extension == "rs") && file.exists() {
            let source = fs::read_to_string(file)?;
            let header = source.lines().map_while(|line| line.strip_prefix("//!"));
            let lines: Vec<&str> = header.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
            headers.push(Header { module, text: without_links(&lines.join("\n")) });
        }
    }
    Ok(headers)
}

/// Replaces links, which only rustdoc resolves, by their words.
fn without_links(text: &str) -> String {
    let Some((before, rest)) = text.split_once('[') else { return text.to_owned() };
    let Some((words, after)) = rest.split_once(']') else { return text.to_owned() };
    let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
    match target {
        Some((_, after)) => format!("{before}{words}{}", without_links(after)),
        None if words.starts_with('`') => format!("{before}{words}{}", without_links(after)),
        None => format!("{before}[{words}]{}", without_links(after)),
    }
}
