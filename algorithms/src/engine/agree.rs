//! Agreement of all ranks on the model and the options, before the first step: a difference would corrupt or hang it.
//!
//! ```text
//! always           a digest of the model and one of the options, from every rank      16 bytes each
//! if they differ   a hash of each of rank 0's statements, to all; the number of the first that another rank makes
//!                  otherwise, from every rank; that statement, from every rank        1 KiB each at most
//! ```

use super::EngineOptions;
use super::plan::Parameter;
use crate::plugin::AnyAlgorithm;
use crate::record::{described, gather_texts};
use hexagram_logical::{Communicator, Error, Queue, Result, hash};

/// Largest number of characters of a value in an error.
const LONGEST: usize = 100;

/// Something that all ranks must say alike: what it is of, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Statement {
    subject: String,
    value: String,
}

impl Statement {
    fn new(subject: impl Into<String>, value: impl Into<String>) -> Self {
        Statement { subject: subject.into(), value: value.into() }
    }

    fn hash(&self) -> u64 {
        hash::of_bytes(hash::of_bytes(hash::START, self.subject.bytes()), self.value.bytes())
    }

    /// Returns subject and value in two lines; of a long value its beginning, and its hash.
    fn shortened(&self) -> String {
        let line = |text: &str| text.replace('\n', " ").chars().take(LONGEST).collect::<String>();
        let more = match self.value.chars().count() > LONGEST {
            true => format!("… (hash {:016x})", self.hash()),
            false => String::new(),
        };
        format!("{}\n{}{more}", line(&self.subject), line(&self.value))
    }
}

/// Fails on all ranks, and names what differs, unless all have the same parameters, algorithm and options.
pub(super) fn agree(
    comm: &Communicator,
    parameters: &[Parameter],
    algorithm: &AnyAlgorithm,
    options: &EngineOptions,
) -> Result<()> {
    let lists = [model(parameters), settings(algorithm, options)];
    let mine = lists.each_ref().map(|list| digest(list) as i64);
    let mut all = vec![0; mine.len() * comm.size()];
    comm.blocking().all_gather(&mine, &mut all)?;
    let kinds = ["ranks train different models", "ranks train with different options"];
    for (kind, list) in lists.iter().enumerate() {
        let of_kind = || all.iter().skip(kind).step_by(mine.len());
        let first = of_kind().next();
        if let Some(other) = of_kind().position(|digest| Some(digest) != first) {
            let what = format!("{}: {}", kinds[kind], difference(comm, list, other)?);
            return Err(Error::usage(what, "give all ranks the same model, algorithm and engine options"));
        }
    }
    Ok(())
}

/// Returns what a rank and rank 0 say differently. A collective call.
fn difference(comm: &Communicator, list: &[Statement], other: usize) -> Result<String> {
    let mut count = [list.len() as i64];
    comm.blocking().broadcast(&mut count, 0)?;
    let own: Vec<i64> = list.iter().map(|statement| statement.hash() as i64).collect();
    let mut first = own.clone();
    first.resize(count[0] as usize, 0);
    comm.blocking().broadcast(&mut first, 0)?;
    let same = own.iter().zip(&first).take_while(|(own, first)| own == first).count();
    let mut differs = vec![0; comm.size()];
    comm.blocking().all_gather(&[same as i64], &mut differs)?;
    let none = Statement::new("that", "missing");
    let said = list.get(differs[other] as usize).unwrap_or(&none);
    let texts = gather_texts(comm, &said.shortened())?;
    let (subject, value) = texts[0].split_once('\n').unwrap_or_default();
    let (other_subject, other_value) = texts[other].split_once('\n').unwrap_or_default();
    let its = if other_subject == subject { "it" } else { other_subject };
    Ok(format!("{subject} is {value} on rank 0, and {its} is {other_value} on rank {other}"))
}

/// Returns a hash that is the same on every rank and in every build.
fn digest(list: &[Statement]) -> u64 {
    list.iter().fold(hash::START, |digest, statement| hash::of_bytes(digest, statement.hash().to_le_bytes()))
}

fn model(parameters: &[Parameter]) -> Vec<Statement> {
    let said = |(at, Parameter { name, dtype, shape }): (usize, &Parameter)| {
        Statement::new(format!("parameter {at}"), format!("`{name}` of {}", described(*dtype, shape)))
    };
    let mut list: Vec<Statement> = parameters.iter().enumerate().map(said).collect();
    list.push(Statement::new("the number of parameters", parameters.len().to_string()));
    list
}

fn settings(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Vec<Statement> {
    // A rank's device is its own.
    let options = EngineOptions { queue: Queue::host(), ..options.clone() };
    let mut list = vec![Statement::new("the algorithm", algorithm.name())];
    list.extend(statements(&format!("{algorithm:?}")));
    list.extend(statements(&format!("{options:?}")));
    list
}

/// Returns the fields of a struct from its `Debug` output; of anything else one statement.
fn statements(debug: &str) -> Vec<Statement> {
    let Some((name, rest)) = debug.split_once(" { ") else {
        return vec![Statement::new("the algorithm", debug)];
    };
    let Some(fields) = rest.strip_suffix(" }") else { return vec![Statement::new(name, debug)] };
    let said = |field: &str| match field.split_once(": ") {
        Some((field, value)) => Statement::new(format!("`{field}` of {name}"), value),
        None => Statement::new(name, field),
    };
    split(fields).into_iter().map(said).collect()
}

/// Splits at commas that are in no brackets and no quotation.
fn split(fields: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut depth = 0usize;
    let mut quoted = false;
    let mut escaped = false;
    for (at, character) in fields.char_indices() {
        match character {
            '\\' if quoted && !escaped => {
                escaped = true;
                continue;
            }
            '"' if !escaped => quoted = !quoted,
            '{' | '(' | '[' if !quoted => depth += 1,
            '}' | ')' | ']' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(fields[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        escaped = false;
    }
    parts.push(fields[start..].trim());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_where_no_bracket_or_quotation_holds_them() {
        let list = statements(r#"A { b: 1, c: Some(D { e: [1, 2], f: 3 }), g: "h, \" i" }"#);
        let said: Vec<_> = list.iter().map(|s| (s.subject.as_str(), s.value.as_str())).collect();
        let expected =
            [("`b` of A", "1"), ("`c` of A", "Some(D { e: [1, 2], f: 3 })"), ("`g` of A", r#""h, \" i""#)];
        assert_eq!(said, expected);
        assert_eq!(statements("Mean"), [Statement::new("the algorithm", "Mean")]);
    }

    #[test]
    fn long_values_are_shortened_and_still_differ() {
        let long = |end: &str| Statement::new("x", "é".repeat(1000) + end).shortened();
        assert!(long("a") != long("b") && long("a").len() < 1024);
    }
}
