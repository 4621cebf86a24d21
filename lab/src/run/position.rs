//! The position of the loader in a checkpoint.

use super::RunError;
use hexagram::Error;
use hexagram::algorithms::checkpoint::Record;
use hexagram::sampler::EpochPart;
use hexagram::sampler::loader::LoaderState;

/// Notes a position in a checkpoint.
pub fn note(record: &mut Record, state: &LoaderState) {
    let LoaderState { seed, epoch, position, order, grouping, parts } = state;
    for (name, value) in [("seed", *seed), ("epoch", *epoch), ("order", *order)] {
        record.note(name, value);
    }
    record.note("position", position);
    record.note("grouping", grouping);
    let parts = parts.iter().map(|EpochPart { grouping, end }| format!("{grouping}:{end}"));
    record.note("parts", parts.collect::<Vec<_>>().join(" "));
}

/// Returns the position that a checkpoint has.
///
/// # Errors
/// If it is missing or unreadable, or from a version that noted no parts.
pub fn noted(record: &Record) -> Result<LoaderState, RunError> {
    if record.notes("position") && !(record.notes("grouping") && record.notes("parts")) {
        let what = "an earlier version of hexagram made the checkpoint, without the `parts` of its epoch";
        return Err(Error::usage(what, "resume with that version, or start the training anew").into());
    }
    let text: String = record.noted("parts")?;
    let unreadable = || {
        let what = format!("the checkpoint says `{text}` of `parts`");
        Error::usage(what, "resume from an older checkpoint")
    };
    let part = |part: &str| {
        let (grouping, end) = part.split_once(':')?;
        Some(EpochPart { grouping: grouping.parse().ok()?, end: end.parse().ok()? })
    };
    Ok(LoaderState {
        seed: record.noted("seed")?,
        epoch: record.noted("epoch")?,
        position: record.noted("position")?,
        order: record.noted("order")?,
        grouping: record.noted("grouping")?,
        parts: text.split_whitespace().map(part).collect::<Option<_>>().ok_or_else(unreadable)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Costs, SamplerKind};
    use super::*;
    use hexagram::sampler::dataset::Items;
    use hexagram::sampler::loader::{DataLoader, LoaderOptions};

    const LINES: usize = 150;

    fn loaders(costs: &Costs, ranks: usize) -> Vec<DataLoader<Vec<usize>>> {
        let of_rank = |rank| {
            let batch_sampler = Some(costs.batches((rank, ranks), (2, 7)).unwrap());
            let options = LoaderOptions { batch_sampler, seed: 7, ..LoaderOptions::default() };
            DataLoader::with_collate(Items((0..LINES).collect()), options, |samples, _| Ok(samples)).unwrap()
        };
        (0..ranks).map(of_rank).collect()
    }

    /// Steps after the checkpoint do not count: a restart takes them back.
    #[test]
    fn each_line_is_trained_on_once_while_the_ranks_of_an_epoch_change() {
        let lengths: Vec<f64> = (0..LINES).map(|line| (20 + line * 37 % 50) as f64).collect();
        use SamplerKind::{Batch, CostBalanced, Distributed, LoadBalancing};
        for sampler in [Distributed, LoadBalancing, CostBalanced, Batch] {
            let costs = Costs::new(sampler, lengths.clone()).unwrap();
            let mut seen = Vec::new();
            let mut checkpoint: Option<Record> = None;
            for (ranks, saved, steps) in [(4, 3, 5), (3, 4, 4), (6, 1, 3), (6, 0, 1), (2, 5, 6), (3, 99, 99)]
            {
                let mut record = Record::default();
                for loader in &mut loaders(&costs, ranks) {
                    let resumed = checkpoint.as_ref().map(|record| noted(record).unwrap());
                    resumed.iter().for_each(|state| loader.resume(state).unwrap());
                    let mut batches = loader.iter();
                    note(&mut record, &batches.state());
                    for step in 1..=steps {
                        let Some(batch) = batches.next() else { break };
                        if step <= saved {
                            seen.extend(batch.unwrap());
                            note(&mut record, &batches.state());
                        }
                    }
                }
                checkpoint = Some(record);
            }
            let drawn = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), drawn, "{sampler}: a line comes twice");
            assert!(drawn > LINES - 10, "{sampler}: {drawn} lines of {LINES}");
        }
    }

    #[test]
    fn a_position_comes_back_from_a_checkpoint() {
        let parts = vec![EpochPart { grouping: 4, end: 48 }, EpochPart { grouping: 3, end: 96 }];
        for parts in [Vec::new(), parts] {
            let state = LoaderState { seed: 1, epoch: 2, position: 120, order: u64::MAX, grouping: 6, parts };
            let mut record = Record::default();
            note(&mut record, &state);
            assert_eq!(noted(&record).unwrap(), state);
            record.note("parts", "4:48 3");
            assert!(noted(&record).unwrap_err().to_string().contains("`4:48 3` of `parts`"));
        }
    }

    #[test]
    fn a_checkpoint_with_damaged_parts_is_refused() {
        let costs = Costs::new(SamplerKind::Batch, vec![1.0; LINES]).unwrap();
        let mut loader = loaders(&costs, 1).remove(0);
        let mut record = Record::default();
        note(&mut record, &LoaderState { position: 5, ..loader.state() });
        for parts in ["1000000000000:5", "18446744073709551615:5", "0:5", "4:6", "4:4 3:2"] {
            record.note("parts", parts);
            let error = loader.resume(&noted(&record).unwrap()).unwrap_err().to_string();
            assert!(error.contains("resume from an older checkpoint"), "{parts}: {error}");
        }
        for parts in ["4", "4:", "x:4", "-1:4", "18446744073709551616:5"] {
            record.note("parts", parts);
            assert!(noted(&record).is_err(), "{parts}");
        }
    }

    #[test]
    fn a_checkpoint_of_an_earlier_version_is_refused_as_such() {
        let mut record = Record::default();
        for name in ["seed", "epoch", "order", "position"] {
            record.note(name, 1);
        }
        let error = noted(&record).unwrap_err().to_string();
        assert!(error.contains("an earlier version of hexagram made the checkpoint"), "{error}");
        assert!(!noted(&Record::default()).unwrap_err().to_string().contains("earlier version"));
    }
}
