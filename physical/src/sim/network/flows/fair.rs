//! Fair shares: the rates of flows that share links.
//!
//! All flows of a link on which one has begun or ended get new rates, those of the most crowded links first; other
//! flows keep their shares of the links that these pass. Then a link is *unfair* if its other flows should have less,
//! because they reduced one of the new rates, or could have more. Its flows get new rates, too, until no link is
//! unfair. So a flow that ends in one corner of a large network costs nothing in the others.
//!
//! Rates within [`TOLERANCE`] are fair: smaller changes do not propagate from link to link.

use super::{CohortNumber, FlowNumber, Flows, LinkNumber, NONE};
use crate::sim::schedule::agenda::Nanoseconds;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

/// Share by which a rate may miss the fair one, and by which a limiting link may be idle.
pub(super) const TOLERANCE: f64 = 1e-3;

/// Ratio up to which two links count as equally crowded: a transfer of a second thus deviates by a nanosecond.
const ALIKE: f64 = 1.0 + 1e-9;

/// Rate of a flow that has none yet.
const OPEN: f64 = -1.0;

/// Links whose flows need a rate, the most crowded first, sorted by the bits of the share of each flow, which sort
/// like their values, since no share is negative.
pub(super) type LinkQueue = BinaryHeap<Reverse<(u64, LinkNumber)>>;

/// Shares of a link while rates are computed.
#[derive(Debug, Clone, Default)]
pub(super) struct LinkShares {
    /// Round in which some of its flows last got new rates.
    touched: u64,
    /// Round in which all its flows did.
    opened: u64,
    /// Sum of the rates of its flows that keep theirs.
    kept: f64,
    /// Number of its flows that get new rates.
    active: u32,
    /// Bandwidth left for the flows without a rate, and their number.
    left: f64,
    open: u32,
    /// Largest new rate.
    most: f64,
    /// New rate of the active flows that it limits, if any, and their number.
    limits: Option<f64>,
    limited: u32,
}

impl LinkShares {
    /// Returns the share of each flow without a rate.
    fn share(&self) -> f64 {
        (self.left / f64::from(self.open)).max(0.0)
    }
}

impl Flows {
    /// Computes the rates of all flows for which they may have changed. Calls `tell` with the cohort of these and of
    /// the renewed flows, and the time when it is due.
    pub(crate) fn share(&mut self, now: Nanoseconds, mut tell: impl FnMut(Nanoseconds, CohortNumber)) {
        self.round += 1;
        self.changes.begin(now);
        let cohort = self.new_cohort();
        let mut due = Nanoseconds::MAX;
        let mut unfair = mem::take(&mut self.changes.urgent);
        while !unfair.is_empty() {
            unfair.drain(..).for_each(|link| self.open(now, link, cohort));
            due = self.fill();
            self.find_unfair(&mut unfair);
            if !unfair.is_empty() {
                self.active.iter().for_each(|number| self.flows[*number as usize].rate = OPEN);
            }
        }
        self.changes.urgent = unfair;
        self.keep();
        let mut active = mem::take(&mut self.active);
        let Flows { flows, renewed, .. } = self;
        for number in renewed.drain(..) {
            let flow = &mut flows[number as usize];
            if flow.lives && flow.cohort == NONE {
                flow.cohort = cohort;
                due = due.min(flow.ends);
                active.push(number);
            }
        }
        if let Some(at) = self.fill_cohort(cohort, &active, due) {
            tell(at, cohort);
        }
        self.active = active;
        self.active.clear();
        self.touched.clear();
    }

    /// Takes their rates from all flows of a link, and puts them into a cohort.
    fn open(&mut self, now: Nanoseconds, link: LinkNumber, cohort: CohortNumber) {
        let round = self.round;
        if mem::replace(&mut self.wires[link as usize].sharing.opened, round) == round {
            return;
        }
        for at in 0..self.wires[link as usize].flows.len() {
            let number = self.wires[link as usize].flows[at];
            let flow = &mut self.flows[number as usize];
            if mem::replace(&mut flow.round, round) == round {
                continue;
            }
            flow.settle(now);
            for link in &self.routes[flow.route.range()] {
                let wire = &mut self.wires[*link as usize];
                if mem::replace(&mut wire.sharing.touched, round) != round {
                    wire.sharing.kept = wire.used;
                    wire.sharing.active = 0;
                    self.touched.push(*link);
                }
                wire.sharing.kept -= flow.rate;
                wire.sharing.active += 1;
                wire.limited -= u32::from(*link == flow.limit);
            }
            flow.rate = OPEN;
            let before = mem::replace(&mut flow.cohort, cohort);
            self.active.push(number);
            self.leave_cohort(before);
        }
        let wire = &mut self.wires[link as usize];
        // Exactly 0, although sums of rates are rounded.
        wire.sharing.kept = 0.0;
        wire.idle = 0.0;
    }

    /// Gives the active flows their rates: those of the most crowded links first. Returns the time at which the first of
    /// them ends.
    fn fill(&mut self) -> Nanoseconds {
        let mut queue = mem::take(&mut self.queue);
        for link in &self.touched {
            let wire = &mut self.wires[*link as usize];
            let sharing = &mut wire.sharing;
            sharing.left = (wire.capacity - sharing.kept).max(0.0);
            sharing.open = sharing.active;
            sharing.most = 0.0;
            sharing.limits = None;
            sharing.limited = 0;
            queue.push(Reverse((sharing.share().to_bits(), *link)));
        }
        let mut due = Nanoseconds::MAX;
        while let Some(Reverse((bits, link))) = queue.pop() {
            let sharing = &self.wires[link as usize].sharing;
            if sharing.open == 0 {
                continue;
            }
            // Shares grow while other flows get their rates.
            let share = sharing.share();
            if share <= f64::from_bits(bits) * ALIKE {
                due = due.min(self.fill_link(link, share));
            } else {
                queue.push(Reverse((share.to_bits(), link)));
            }
        }
        self.queue = queue;
        due
    }

    /// Gives this rate to the flows of a link that have none yet. Returns the time at which the first of them ends.
    fn fill_link(&mut self, link: LinkNumber, rate: f64) -> Nanoseconds {
        let mut due = Nanoseconds::MAX;
        let mut limited = 0;
        let pace = 1.0 / rate;
        for at in 0..self.wires[link as usize].flows.len() {
            let number = self.wires[link as usize].flows[at];
            let flow = &mut self.flows[number as usize];
            if flow.rate >= 0.0 {
                continue;
            }
            flow.set_rate(rate, pace);
            flow.limit = link;
            due = due.min(flow.ends);
            limited += 1;
            for other in &self.routes[flow.route.range()] {
                let sharing = &mut self.wires[*other as usize].sharing;
                sharing.left -= rate;
                sharing.open -= 1;
                sharing.most = sharing.most.max(rate);
            }
        }
        let sharing = &mut self.wires[link as usize].sharing;
        sharing.limits = Some(rate);
        sharing.limited = limited;
        due
    }

    /// Adds the links with flows whose kept rates are no longer fair.
    fn find_unfair(&self, unfair: &mut Vec<LinkNumber>) {
        let is_unfair = |link: &&LinkNumber| self.is_unfair(**link);
        unfair.extend(self.touched.iter().filter(is_unfair));
    }

    fn is_unfair(&self, link: LinkNumber) -> bool {
        let wire = &self.wires[link as usize];
        let sharing = &wire.sharing;
        if sharing.opened == self.round || sharing.active as usize == wire.flows.len() {
            return false;
        }
        let more = 1.0 + TOLERANCE;
        if wire.limited > 0 {
            let is_idle = sharing.left > TOLERANCE * wire.capacity;
            return is_idle
                || sharing.most > wire.level * more
                || sharing.limits.is_some_and(|limit| wire.level > limit * more);
        }
        let Some(limit) = sharing.limits else { return false };
        let kept = |number: &&FlowNumber| self.flows[**number as usize].round != self.round;
        let mut kept = wire.flows.iter().filter(kept);
        kept.any(|number| self.flows[*number as usize].rate > limit * more)
    }

    /// Stores the new rates of the links.
    fn keep(&mut self) {
        for link in &self.touched {
            let wire = &mut self.wires[*link as usize];
            let sharing = &wire.sharing;
            wire.used = sharing.kept + (wire.capacity - sharing.kept).max(0.0) - sharing.left;
            if let Some(limit) = sharing.limits.filter(|_| wire.limited == 0) {
                wire.level = limit;
            }
            wire.limited += sharing.limited;
        }
    }
}
