//! What is counted: of documentation, names, functions and files.

use crate::source::{Doc, Item, Source};
use std::collections::BTreeMap;

/// Third-person verbs with which the documentation of a function may begin; with `…`, those that are plurals of nouns
/// as well, and count as verbs before one of [`AFTER_A_VERB`] only.
const VERBS: &str = include_str!("verbs.txt");
const AFTER_A_VERB: [&str; 32] = [
    "the", "a", "an", "this", "these", "its", "their", "his", "every", "each", "all", "any", "both", "one",
    "two", "no", "what", "how", "whether", "as", "to", "until", "from", "into", "up", "on", "out", "back",
    "over", "down", "it", "them",
];
/// Words with which a clause begins instead of a sentence, or a fragment.
const CLAUSES: [&str; 16] = [
    "What", "How", "Whether", "Of", "That", "Those", "Who", "Whom", "Whose", "Where", "When", "Which", "So",
    "As", "If", "Why",
];
/// Words with which the documentation of a thing begins, and never that of a function.
const ARTICLES: [&str; 9] = ["The", "A", "An", "This", "These", "Its", "Their", "It", "They"];
/// Longest file and longest function, in lines.
pub(crate) const LONGEST_FILE: usize = 500;
pub(crate) const LONGEST_FUNCTION: usize = 40;

/// What was counted in one crate, or in all. Each offender says where it is.
#[derive(Default)]
pub(crate) struct Measure {
    /// Documented functions, and those of them that are public.
    pub(crate) functions: Share,
    pub(crate) public_functions: Share,
    /// Functions that are documented as things.
    pub(crate) things: Vec<String>,
    /// First lines of documentation.
    pub(crate) first_lines: Share,
    /// By name, where types are defined.
    pub(crate) types: BTreeMap<String, Vec<String>>,
    /// Lines of functions, from the name to the last brace, and the long ones.
    pub(crate) lengths: Vec<usize>,
    pub(crate) long_functions: Vec<String>,
    pub(crate) long_files: Vec<String>,
    pub(crate) tuples: Vec<String>,
}

/// How many there are, and which offend.
#[derive(Default)]
pub(crate) struct Share {
    pub(crate) all: usize,
    pub(crate) offenders: Vec<String>,
}

impl Share {
    fn count(&mut self, offends: bool, place: impl FnOnce() -> String) {
        self.all += 1;
        if offends {
            self.offenders.push(place());
        }
    }

    /// Returns the share that offends, in percent.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.offenders.len() as f64 / self.all.max(1) as f64
    }
}

impl Measure {
    /// Counts in a file of sources.
    pub(crate) fn add(&mut self, source: &Source) {
        for doc in &source.docs {
            self.add_doc(source, doc);
        }
        source.items.iter().for_each(|item| self.add_length(source, item));
    }

    /// Counts the types in a file of a crate.
    pub(crate) fn add_types(&mut self, source: &Source) {
        source.items.iter().for_each(|item| self.add_type(source, item));
    }

    /// Counts in any file, tests too.
    pub(crate) fn add_form(&mut self, source: &Source) {
        if source.lines > LONGEST_FILE {
            self.long_files.push(format!("{}: {} lines", source.path, source.lines));
        }
        self.tuples.extend(
            tuples(&source.code).into_iter().map(|at| format!("{}:{}", source.path, source.line(at))),
        );
    }

    fn add_doc(&mut self, source: &Source, doc: &Doc) {
        let place = || format!("{}:{}: {}", source.path, doc.line, doc.first);
        let word = doc.first.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        self.first_lines.count(CLAUSES.contains(&word), place);
        let Some(item) =
            source.items.iter().find(|item| item.start >= doc.end && item.name_of("fn").is_some())
        else {
            return;
        };
        if !source.is_next(doc.end, item) {
            return;
        }
        if ARTICLES.contains(&word) {
            self.things.push(place());
        }
        let is_verb = begins_with_verb(&doc.first);
        self.functions.count(!is_verb, place);
        if item.is_public() || source.is_in_public_trait(item) {
            self.public_functions.count(!is_verb, place);
        }
    }

    fn add_type(&mut self, source: &Source, item: &Item) {
        let is_associated = item.parent.map(|parent| &source.items[parent]).is_some_and(|parent| {
            parent.name_of("fn").is_none()
                && parent.head.iter().any(|word| ["impl", "trait"].contains(&word.as_str()))
        });
        let kinds = ["struct", "enum", "union", "trait", "type"];
        let name = kinds.into_iter().find_map(|kind| item.name_of(kind));
        if let Some(name) = name.filter(|_| !is_associated) {
            let place = format!("{}:{}", source.path, source.line(item.start));
            self.types.entry(name.to_owned()).or_default().push(place);
        }
    }

    fn add_length(&mut self, source: &Source, item: &Item) {
        let (Some(name), Some(body)) = (item.name_of("fn"), &item.body) else { return };
        let lines = 1 + source.code[item.start..body.end].matches('\n').count();
        self.lengths.push(lines);
        if lines > LONGEST_FUNCTION {
            let line = source.line(item.start);
            self.long_functions.push(format!("{}:{line}: {name} has {lines} lines", source.path));
        }
    }

    /// Returns the names of types that are defined more than twice, and where.
    pub(crate) fn recurring(&self) -> Vec<String> {
        let many = self.types.iter().filter(|(_, places)| places.len() > 2);
        many.map(|(name, places)| format!("{name} ×{}: {}", places.len(), places.join(", "))).collect()
    }

    /// Returns the median length of functions, in lines.
    pub(crate) fn median(&self) -> usize {
        let mut lengths = self.lengths.clone();
        lengths.sort_unstable();
        lengths.get(lengths.len() / 2).copied().unwrap_or_default()
    }

    /// Adds what another has counted.
    pub(crate) fn merge(&mut self, other: Measure) {
        let shares = [
            (&mut self.functions, other.functions),
            (&mut self.public_functions, other.public_functions),
            (&mut self.first_lines, other.first_lines),
        ];
        for (mine, theirs) in shares {
            mine.all += theirs.all;
            mine.offenders.extend(theirs.offenders);
        }
        self.lengths.extend(other.lengths);
        self.long_functions.extend(other.long_functions);
        self.long_files.extend(other.long_files);
        self.things.extend(other.things);
        self.tuples.extend(other.tuples);
    }
}

impl Source {
    /// Whether nothing but attributes lies between a comment and an item.
    fn is_next(&self, end: usize, item: &Item) -> bool {
        let mut between = self.code[end..item.start].trim();
        while let Some(attribute) = between.strip_prefix("#[") {
            between = attribute[crate::source::closing(attribute)..].trim_start();
        }
        between.is_empty()
    }

    fn is_in_public_trait(&self, item: &Item) -> bool {
        let parent = item.parent.map(|parent| &self.items[parent]);
        parent.is_some_and(|parent| parent.is_public() && parent.name_of("trait").is_some())
    }
}

/// Whether a line begins with a verb in the third person.
fn begins_with_verb(line: &str) -> bool {
    let (word, rest) = line.split_once(' ').unwrap_or((line.trim_end_matches('.'), ""));
    let next = rest.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    VERBS.lines().any(|verb| match verb.strip_suffix(" …") {
        Some(verb) => verb == word && (AFTER_A_VERB.contains(&next) || rest.starts_with(['`', '[', '“'])),
        None => verb == word,
    })
}

/// Where several values are given names, or new values, by one statement on tuples or arrays.
fn tuples(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(['(', '[']) {
        let before = code[..at].trim_end();
        // Not `if let`, which asks whether a pattern fits.
        let before = before.strip_suffix("let").unwrap_or(before).trim_end();
        let begins = before.is_empty() || before.ends_with([';', '{', '}', ']']);
        if begins && packs(&code[at..]) {
            found.push(at);
        }
    }
    found
}

/// Whether `text` is a pattern of several, an equals sign and an expression of several, and nothing more.
fn packs(text: &str) -> bool {
    let several = |text: &str| -> Option<usize> {
        let inner = text.strip_prefix(['(', '['])?;
        let end = crate::source::closing(inner);
        let is_several = inner[..end].contains(',');
        is_several.then_some(1 + end)
    };
    let Some(pattern) = several(text) else { return false };
    let rest = text[pattern..].trim_start();
    // A type may stand between them.
    let is_typed = rest.starts_with(':');
    let is_given = rest.strip_prefix('=').is_some_and(|value| value.starts_with(char::is_whitespace));
    let equals = if is_typed { rest.find('=') } else { is_given.then_some(0) };
    let Some(value) = equals.map(|at| rest[at + 1..].trim_start()) else { return false };
    several(value).is_some_and(|end| value[end..].trim_start().starts_with([';', '}']))
}
