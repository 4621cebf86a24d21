//! How often a job that fails starts again.

/// Starts in a row without a new checkpoint after which a job that uses checkpoints ends.
const STALLED: usize = 3;

/// Restarts that a job has left.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u32,
    /// Failures since the last checkpoint, if the job uses checkpoints.
    stalled: Vec<String>,
}

/// Checkpoints of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpointed {
    /// True if the ranks use checkpoints of hexagram.
    pub(crate) is_used: bool,
    /// True if they have saved one.
    pub(crate) has_saved: bool,
}

impl Budget {
    pub(crate) fn new(max_restarts: u32) -> Self {
        Budget { left: max_restarts, stalled: Vec::new() }
    }

    /// Records a failure, and returns true if the job starts again.
    pub(crate) fn allows(&mut self, why: &str, checkpointed: Checkpointed) -> bool {
        self.saw(checkpointed);
        if checkpointed.is_used && !checkpointed.has_saved {
            self.stalled.push(why.to_owned());
        }
        let is_allowed = self.left > 0 && self.stalled.len() < STALLED;
        self.left -= u32::from(is_allowed);
        is_allowed
    }

    /// Records the checkpoints of a start.
    pub(crate) fn saw(&mut self, checkpointed: Checkpointed) {
        if checkpointed.has_saved {
            self.stalled.clear();
        }
    }

    /// Returns why no restart is worthwhile, if that has ended the job.
    pub(crate) fn stall(&self) -> Option<String> {
        (self.stalled.len() >= STALLED).then(|| {
            let each: Vec<_> = (1..).zip(&self.stalled).map(|(nth, why)| format!("{nth}. {why}")).collect();
            format!("{STALLED} starts in a row failed without a new checkpoint: {}", each.join("; "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Checkpointed = Checkpointed { is_used: false, has_saved: false };
    const USED: Checkpointed = Checkpointed { is_used: true, has_saved: false };
    const SAVED: Checkpointed = Checkpointed { is_used: true, has_saved: true };

    #[test]
    fn a_job_without_checkpoints_has_all_its_restarts() {
        let mut budget = Budget::new(4);
        assert!((0..4).all(|_| budget.allows("x", NONE)) && !budget.allows("x", NONE));
        assert_eq!(budget.stall(), None);
    }

    #[test]
    fn three_failures_without_a_new_checkpoint_end_a_job() {
        let mut budget = Budget::new(100);
        assert!(budget.allows("a", USED) && budget.allows("b", SAVED));
        assert!(budget.allows("c", USED) && budget.allows("d", USED) && !budget.allows("e", USED));
        let stall = budget.stall().unwrap();
        assert!(stall.ends_with("without a new checkpoint: 1. c; 2. d; 3. e"), "{stall}");
    }
}
