//! Agreement of all ranks on the model and the options, before the first step: a difference would corrupt or hang it.
//!
//! ```text
//! always           the extremes of a digest of model and options    an all-reduce of 32 bytes
//! if they differ   both digests, from every rank                    16 bytes each
//!                  the number of statements of rank 0, at most 2²⁰, and a hash of each, to all
//!                  the index of the first statement that differs, from every rank
//!                  that statement, from every rank                  at most 1 KiB each
//! ```

use crate::engine::EngineOptions;
use crate::engine::plan::Parameter;
use crate::optimizer::Optimizer;
use crate::plugin::AnyAlgorithm;
use crate::record::{announced, described, gather_texts};
use hexagram_logical::options_text::{Argument, OptionsText};
use hexagram_logical::{Communicator, Error, ReduceOp, Result, hash};
use std::fmt::Debug;

/// Maximum number of statements that are compared one by one.
const MOST: usize = 1 << 20;

/// Maximum number of characters of a value in an error.
const LONGEST: usize = 100;

/// Something on which all ranks must agree: subject and value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AgreedValue {
    subject: String,
    value: String,
}

impl AgreedValue {
    fn new(subject: impl Into<String>, value: impl Into<String>) -> Self {
        AgreedValue { subject: subject.into(), value: value.into() }
    }

    fn hash(&self) -> u64 {
        hash::of_bytes(hash::of_bytes(hash::START, self.subject.bytes()), self.value.bytes())
    }

    /// Returns subject and value in two lines; a long value is replaced by its beginning and its hash.
    fn shortened(&self) -> String {
        let line = |text: &str| text.replace('\n', " ").chars().take(LONGEST).collect::<String>();
        let more = match self.value.chars().count() > LONGEST {
            true => format!("… (hash {:016x})", self.hash()),
            false => String::new(),
        };
        format!("{}\n{}{more}", line(&self.subject), line(&self.value))
    }
}

/// Fails on all ranks, with the difference, unless all have the same parameters, algorithm and options.
pub(crate) fn agree(
    comm: &Communicator,
    parameters: &[Parameter],
    algorithm: &AnyAlgorithm,
    options: &EngineOptions,
) -> Result<()> {
    let lists = [model(parameters), settings(algorithm, options)];
    let mine = lists.each_ref().map(|list| digest(list) as i64);
    if are_alike(comm, &mine)? {
        return Ok(());
    }
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

/// Returns true if all ranks have the same numbers. A collective call.
pub(crate) fn are_alike(comm: &Communicator, mine: &[i64]) -> Result<bool> {
    Ok(which_are_alike(comm, mine)?.into_iter().all(|alike| alike))
}

/// Returns for each number whether it is the same on all ranks. A collective call.
pub(crate) fn which_are_alike(comm: &Communicator, mine: &[i64]) -> Result<Vec<bool>> {
    // The complement of the smallest number is the largest complement.
    let mut most: Vec<i64> = mine.iter().copied().chain(mine.iter().map(|number| !number)).collect();
    comm.blocking().all_reduce(&mut most, ReduceOp::Max)?;
    let (most, of_complements) = most.split_at(mine.len());
    Ok(most.iter().zip(of_complements).map(|(most, complement)| *most == !complement).collect())
}

/// Returns the statement on which a rank and rank 0 differ. A collective call.
fn difference(comm: &Communicator, list: &[AgreedValue], other: usize) -> Result<String> {
    let mut count = [list.len() as i64];
    comm.blocking().broadcast(&mut count, 0)?;
    let count = announced("rank 0", count[0], MOST, "settings to compare")?;
    let own: Vec<i64> = list.iter().map(|statement| statement.hash() as i64).collect();
    let mut first = own.clone();
    first.resize(count, 0);
    comm.blocking().broadcast(&mut first, 0)?;
    let same = own.iter().zip(&first).take_while(|(own, first)| own == first).count();
    let mut differs = vec![0; comm.size()];
    comm.blocking().all_gather(&[same as i64], &mut differs)?;
    let none = AgreedValue::new("that", "missing");
    let at = differs.get(other).and_then(|at| usize::try_from(*at).ok());
    let said = at.and_then(|at| list.get(at)).unwrap_or(&none);
    let texts = gather_texts(comm, &said.shortened())?;
    let (subject, value) = texts[0].split_once('\n').unwrap_or_default();
    let (other_subject, other_value) = texts[other].split_once('\n').unwrap_or_default();
    let its = if other_subject == subject { "it" } else { other_subject };
    Ok(format!("{subject} is {value} on rank 0, and {its} is {other_value} on rank {other}"))
}

/// Returns a hash that is the same on every rank and in every build.
fn digest(list: &[AgreedValue]) -> u64 {
    list.iter().fold(hash::START, |digest, statement| hash::of_bytes(digest, statement.hash().to_le_bytes()))
}

fn model(parameters: &[Parameter]) -> Vec<AgreedValue> {
    let said = |(at, Parameter { name, dtype, shape }): (usize, &Parameter)| {
        AgreedValue::new(format!("parameter {at}"), format!("`{name}` of {}", described(*dtype, shape)))
    };
    let mut list: Vec<AgreedValue> = parameters.iter().enumerate().map(said).collect();
    list.push(AgreedValue::new("the number of parameters", parameters.len().to_string()));
    list
}

fn settings(algorithm: &AnyAlgorithm, options: &EngineOptions) -> Vec<AgreedValue> {
    let mut list = vec![AgreedValue::new("the algorithm", algorithm.name())];
    list.extend(spelled(algorithm.name(), &algorithm.spelling()));
    // The fields of the algorithm that are not options.
    list.push(AgreedValue::new("the algorithm", format!("{algorithm:?}")));
    list.extend(engine_settings(options));
    list.extend(optimizer_settings(options.optimizer.as_deref()));
    list
}

/// Returns a statement for each option of a spelling.
fn spelled(name: &str, spelling: &OptionsText) -> Vec<AgreedValue> {
    let said = |argument: &Argument| {
        let subject = argument.field().map_or(name.to_owned(), |field| format!("`{field}` of {name}"));
        AgreedValue::new(subject, argument.value().to_string())
    };
    spelling.arguments().iter().map(said).collect()
}

/// Returns the statements of the engine options, except the optimizer and the device, which may differ between ranks.
fn engine_settings(options: &EngineOptions) -> Vec<AgreedValue> {
    let EngineOptions {
        bucket_bytes,
        first_bucket_bytes,
        order,
        unused,
        buffers,
        optimizer: _,
        learning_rate,
        groups,
        hierarchical,
        overlap,
        streams,
        clip_norm,
        loss_scale,
        skip_overflows,
        uneven,
        queue: _,
        seed,
        autotune,
    } = options;
    vec![
        describe("bucket_bytes", bucket_bytes),
        describe("first_bucket_bytes", first_bucket_bytes),
        describe("order", order),
        describe("unused", unused),
        describe("buffers", buffers),
        describe_optional("learning_rate", learning_rate.as_ref()),
        describe("groups", groups),
        describe("hierarchical", hierarchical),
        describe("overlap", overlap),
        describe("streams", streams),
        describe_optional("clip_norm", clip_norm.as_ref()),
        describe_optional("loss_scale", loss_scale.as_ref()),
        describe("skip_overflows", skip_overflows),
        describe("uneven", uneven),
        describe("seed", seed),
        describe_optional("autotune", autotune.as_ref()),
    ]
}

fn describe(field: &str, value: &dyn Debug) -> AgreedValue {
    AgreedValue::new(subject(field), format!("{value:?}"))
}

/// Returns the statement of an optional setting.
fn describe_optional(field: &str, value: Option<&impl Debug>) -> AgreedValue {
    value.map_or_else(|| AgreedValue::new(subject(field), "left out"), |value| describe(field, value))
}

fn subject(field: &str) -> String {
    format!("the option `{field}`")
}

fn optimizer_settings(optimizer: Option<&dyn Optimizer>) -> Vec<AgreedValue> {
    let said = match optimizer {
        Some(optimizer) => vec![optimizer.spelled(), format!("{optimizer:?}")],
        None => vec!["the framework's".to_owned()],
    };
    said.into_iter().map(|value| AgreedValue::new("the optimizer", value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Autotune, Buffers, LossScale, Order, Overlap, Unused};
    use crate::optimizer::{Members, ParameterGroup, Sgd};
    use std::sync::Arc;

    #[test]
    fn options_are_said_as_they_are_spelled_and_then_all_that_the_algorithm_is() {
        let local = AnyAlgorithm::from(crate::local_sgd::LocalSgd::default());
        let said = spelled("local-sgd", &local.spelling());
        assert_eq!(said[0], AgreedValue::new("`period` of local-sgd", "4"));
        let list = settings(&local, &EngineOptions::default());
        assert!(list.contains(&AgreedValue::new("the algorithm", format!("{local:?}"))));
        assert!(list.contains(&AgreedValue::new("the option `clip_norm`", "left out")));
        assert_eq!(list.last(), Some(&AgreedValue::new("the optimizer", "the framework's")));
    }

    #[test]
    fn every_option_counts_but_for_the_queue() {
        let changes: [fn(&mut EngineOptions); 17] = [
            |options| options.skip_overflows = true,
            |options| options.bucket_bytes += 1,
            |options| options.first_bucket_bytes += 1,
            |options| options.order = Order::Listed,
            |options| options.unused = Unused::Zero,
            |options| options.buffers = Buffers::Average,
            |options| options.optimizer = Some(Arc::new(Sgd::default())),
            |options| options.learning_rate = Some(0.1.into()),
            |options| options.groups.push(ParameterGroup::of(Members::Vectors)),
            |options| options.hierarchical = true,
            |options| options.overlap = Overlap::Forward,
            |options| options.streams -= 1,
            |options| options.clip_norm = Some(1.0),
            |options| options.loss_scale = Some(LossScale::default()),
            |options| options.uneven = true,
            |options| options.seed = 1,
            |options| options.autotune = Some(Autotune::default()),
        ];
        let algorithm = AnyAlgorithm::from(crate::local_sgd::LocalSgd::default());
        let said = |options: &EngineOptions| digest(&settings(&algorithm, options));
        let usual = said(&EngineOptions::default());
        for (at, change) in changes.iter().enumerate() {
            let mut options = EngineOptions::default();
            change(&mut options);
            assert_ne!(said(&options), usual, "option {at}");
        }
    }

    #[test]
    fn long_values_are_shortened_and_still_differ() {
        let long = |end: &str| AgreedValue::new("x", "é".repeat(1000) + end).shortened();
        assert!(long("a") != long("b") && long("a").len() < 1024);
    }
}
