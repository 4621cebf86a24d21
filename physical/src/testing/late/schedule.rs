//! The order of the work of the late device: no work is done before a caller waits for it, and then only the
//! necessary work.
//!
//! Work of one queue is done in order. Between queues, the order differs from that of the program as much as
//! possible, so that a missing wait gives bytes that are too early or too late. With a seed other than 0, random
//! other work is done, too.

use std::collections::VecDeque;

/// Work that is done in one go.
pub(super) type LateWork = Box<dyn FnOnce() + Send>;

/// Steps of all queues together, above which work is done even if no caller waits for it.
const MOST: usize = 4096;
/// One of this number of steps is drawn among all possible ones.
const CHANCE: u64 = 4;

/// A point in the work of a queue: it has happened when this number of its steps is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LatePoint {
    pub(super) queue: usize,
    pub(super) steps: u64,
}

enum LateStep {
    Work(LateWork),
    Wait(LatePoint),
}

/// The steps of one queue.
#[derive(Default)]
struct LateLine {
    steps: VecDeque<LateStep>,
    /// Steps so far, of which one may be taken but not done.
    enqueued: u64,
    done: u64,
}

impl LateLine {
    fn push(&mut self, step: LateStep) {
        self.steps.push_back(step);
        self.enqueued += 1;
    }
}

/// Jobs that have been enqueued, and points that are waited for.
pub(super) struct LateSchedule {
    lines: Vec<LateLine>,
    /// Steps of all lines together that have not been taken.
    waiting: usize,
    /// Lines that no longer belong to a queue. The next queue that gets a line continues its count of steps.
    free: Vec<usize>,
    wanted: Vec<LatePoint>,
    seed: u64,
}

impl LateSchedule {
    pub(super) fn new(seed: u64) -> Self {
        LateSchedule { lines: Vec::new(), waiting: 0, free: Vec::new(), wanted: Vec::new(), seed }
    }

    /// Returns an unused number for a queue.
    pub(super) fn open(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.lines.push(LateLine::default());
            self.lines.len() - 1
        })
    }

    /// Frees the number of a queue.
    pub(super) fn close(&mut self, queue: usize) {
        self.free.push(queue);
    }

    /// Returns true if so much work is queued that some must be done even if no caller waits for it.
    pub(super) fn enqueue(&mut self, queue: usize, job: LateWork) -> bool {
        self.push(queue, LateStep::Work(job));
        self.waiting > MOST && self.want(self.end(queue))
    }

    pub(super) fn wait(&mut self, queue: usize, point: LatePoint) {
        self.push(queue, LateStep::Wait(point));
    }

    fn push(&mut self, queue: usize, step: LateStep) {
        self.lines[queue].push(step);
        self.waiting += 1;
    }

    /// Returns the point after all that was enqueued so far.
    pub(super) fn end(&self, queue: usize) -> LatePoint {
        LatePoint { queue, steps: self.lines[queue].enqueued }
    }

    pub(super) fn has_happened(&self, point: LatePoint) -> bool {
        self.lines[point.queue].done >= point.steps
    }

    /// Requests work until `point` has happened. Returns true if this is the first request.
    pub(super) fn want(&mut self, point: LatePoint) -> bool {
        let is_new = !self.has_happened(point) && !self.wanted.contains(&point);
        if is_new {
            self.wanted.push(point);
        }
        is_new
    }

    /// Requests all work.
    pub(super) fn want_all(&mut self) {
        for queue in 0..self.lines.len() {
            self.want(self.end(queue));
        }
    }

    /// Takes the next job and the number of its queue; `None` while no work is requested. Call [`LateSchedule::finish`]
    /// before taking the next one.
    pub(super) fn next(&mut self) -> Option<(usize, LateWork)> {
        loop {
            let lines = &self.lines;
            self.wanted.retain(|point| lines[point.queue].done < point.steps);
            let wanted = *self.wanted.last()?;
            let queue = self.by_chance().unwrap_or_else(|| self.needed_for(wanted));
            let step = self.lines[queue].steps.pop_front()?;
            self.waiting -= 1;
            match step {
                LateStep::Work(job) => return Some((queue, job)),
                LateStep::Wait(_) => self.finish(queue),
            }
        }
    }

    pub(super) fn finish(&mut self, queue: usize) {
        self.lines[queue].done += 1;
    }

    /// Returns the point for which the next step of a queue waits, if it has not happened.
    fn obstacle(&self, queue: usize) -> Option<LatePoint> {
        match self.lines[queue].steps.front() {
            Some(LateStep::Wait(point)) if !self.has_happened(*point) => Some(*point),
            _ => None,
        }
    }

    /// Returns the queue whose next step must be done before `point` can happen. Steps wait for earlier ones only, so
    /// that such a queue exists.
    fn needed_for(&self, point: LatePoint) -> usize {
        let mut queue = point.queue;
        while let Some(obstacle) = self.obstacle(queue) {
            queue = obstacle.queue;
        }
        queue
    }

    /// Sometimes returns a queue that could continue, needed or not.
    fn by_chance(&mut self) -> Option<usize> {
        if self.seed == 0 || !self.draw().is_multiple_of(CHANCE) {
            return None;
        }
        let can_go_on =
            |queue: &usize| !self.lines[*queue].steps.is_empty() && self.obstacle(*queue).is_none();
        let ready: Vec<usize> = (0..self.lines.len()).filter(can_go_on).collect();
        let place = self.draw() as usize % ready.len().max(1);
        ready.get(place).copied()
    }

    /// Returns the next of a sequence of numbers that the seed determines (xorshift).
    fn draw(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed >> 11
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Enqueues a job that writes a name into a list.
    fn note(
        schedule: &mut LateSchedule,
        queue: usize,
        names: &Arc<Mutex<Vec<&'static str>>>,
        name: &'static str,
    ) {
        let names = Arc::clone(names);
        let job = move || names.lock().unwrap().push(name);
        schedule.enqueue(queue, Box::new(job));
    }

    fn run(schedule: &mut LateSchedule) {
        while let Some((queue, job)) = schedule.next() {
            job();
            schedule.finish(queue);
        }
    }

    #[test]
    fn nothing_is_done_before_it_is_waited_for_and_then_no_more() {
        let names = Arc::default();
        let mut schedule = LateSchedule::new(0);
        let first = schedule.open();
        let second = schedule.open();
        note(&mut schedule, first, &names, "a");
        note(&mut schedule, second, &names, "b");
        let end = schedule.end(second);
        note(&mut schedule, second, &names, "c");
        run(&mut schedule);
        assert!(names.lock().unwrap().is_empty());
        schedule.want(end);
        run(&mut schedule);
        assert_eq!(*names.lock().unwrap(), ["b"]);
    }

    #[test]
    fn a_job_that_was_taken_is_not_done() {
        let names = Arc::default();
        let mut schedule = LateSchedule::new(0);
        let queue = schedule.open();
        note(&mut schedule, queue, &names, "a");
        schedule.want(schedule.end(queue));
        let taken = schedule.next().unwrap();
        let end = schedule.end(queue);
        assert!(!schedule.has_happened(end));
        schedule.finish(taken.0);
        assert!(schedule.has_happened(end));
    }

    #[test]
    fn a_queue_that_waits_is_behind_what_it_waits_for() {
        for seed in 0..50 {
            let names = Arc::default();
            let mut schedule = LateSchedule::new(seed);
            let [first, second, third] = [(); 3].map(|()| schedule.open());
            note(&mut schedule, first, &names, "a");
            let point = schedule.end(first);
            schedule.wait(second, point);
            note(&mut schedule, second, &names, "b");
            note(&mut schedule, third, &names, "c");
            let point = schedule.end(second);
            schedule.wait(first, point);
            note(&mut schedule, first, &names, "d");
            schedule.want(schedule.end(first));
            run(&mut schedule);
            let names = names.lock().unwrap().iter().copied().filter(|name| *name != "c").collect::<Vec<_>>();
            assert_eq!(names, ["a", "b", "d"], "seed {seed}");
        }
    }

    #[test]
    fn a_seed_makes_one_order_and_seeds_make_several() {
        let order = |seed| {
            let names = Arc::default();
            let mut schedule = LateSchedule::new(seed);
            let queues = [(); 3].map(|()| schedule.open());
            for name in ["a", "b", "c", "d"] {
                queues.iter().for_each(|queue| note(&mut schedule, *queue, &names, name));
            }
            for queue in queues {
                schedule.want(schedule.end(queue));
            }
            run(&mut schedule);
            names.lock().unwrap().clone()
        };
        assert_eq!(order(7), order(7));
        assert!((1..20).any(|seed| order(seed) != order(7)));
    }
}
