//! Flows: bytes on their way over links, which share a link's bandwidth fairly. Open this to see how long a message takes.
//!
//! Rates are max-min fair: no flow can have more without one that has no more than it having less (Bertsekas and Gallager,
//! Data Networks, section 6.5.2). They change when a flow begins or ends, and then only among flows that share links with
//! it, directly or by way of others; so what costs time is how many do.

use super::agenda::Time;

/// FlowNumber of a link, which leads one way.
pub(super) type LinkNumber = u32;

/// FlowNumber of a flow.
pub(super) type FlowNumber = u32;

/// Bytes that count as none: rates are rounded, and so is time.
const NOTHING: f64 = 1e-3;

/// Bytes on their way.
#[derive(Debug, Clone)]
struct Flow {
    route: Vec<LinkNumber>,
    /// Bytes that had not left at the time `since`.
    left: f64,
    /// Bytes that leave in a nanosecond.
    rate: f64,
    since: Time,
}

#[derive(Debug, Clone)]
struct Wire {
    /// Bytes in a nanosecond.
    capacity: f64,
    flows: Vec<FlowNumber>,
    /// Round of [`Flows::share`] that has seen it last.
    seen: u64,
    /// Place among the links that are given to their flows, while they are.
    place: usize,
}

/// All flows of a network.
#[derive(Debug, Default)]
pub(super) struct Flows {
    wires: Vec<Wire>,
    /// `None` of a number that is free.
    flows: Vec<Option<Flow>>,
    /// Round that has seen a flow last.
    seen: Vec<u64>,
    free: Vec<FlowNumber>,
    /// Links on which a flow has begun or ended since rates were last computed.
    changed: Vec<LinkNumber>,
    round: u64,
}

impl Flows {
    /// Adds a link of so many bytes a second.
    pub(super) fn add_link(&mut self, bandwidth: f64) -> LinkNumber {
        self.wires.push(Wire { capacity: bandwidth / 1e9, flows: Vec::new(), seen: 0, place: 0 });
        (self.wires.len() - 1) as LinkNumber
    }

    /// Changes the bandwidth of a link, in bytes a second. Zero cuts it: what is on its way waits.
    pub(super) fn set_bandwidth(&mut self, link: LinkNumber, bandwidth: f64) {
        self.wires[link as usize].capacity = bandwidth / 1e9;
        self.changed.push(link);
    }

    /// Begins a flow of so many bytes over links, of which there is at least one.
    pub(super) fn begin(&mut self, now: Time, route: Vec<LinkNumber>, bytes: usize) -> FlowNumber {
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.seen.push(0);
            (self.flows.len() - 1) as FlowNumber
        });
        for link in &route {
            self.wires[*link as usize].flows.push(number);
        }
        self.changed.extend_from_slice(&route);
        self.flows[number as usize] = Some(Flow { route, left: bytes as f64, rate: 0.0, since: now });
        number
    }

    /// Returns true if rates have to be computed before time passes.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Ends a flow before its bytes have left, or after.
    pub(super) fn end(&mut self, number: FlowNumber) {
        let Some(flow) = self.flows[number as usize].take() else { return };
        for link in &flow.route {
            let flows = &mut self.wires[*link as usize].flows;
            if let Some(at) = flows.iter().position(|other| *other == number) {
                flows.swap_remove(at);
            }
        }
        self.changed.extend(flow.route);
        self.free.push(number);
    }

    /// Looks at the flows that share links with `number`, itself included: those whose bytes have left end, and are
    /// returned in the order of their numbers.
    pub(super) fn finish(&mut self, now: Time, number: FlowNumber) -> Vec<FlowNumber> {
        let Some(flow) = &self.flows[number as usize] else { return Vec::new() };
        let links = flow.route.clone();
        let (_, flows) = self.connected(&links);
        let mut done: Vec<FlowNumber> = flows.into_iter().filter(|flow| self.settle(now, *flow)).collect();
        done.sort_unstable();
        done.iter().for_each(|flow| self.end(*flow));
        done
    }

    /// Counts what has left of a flow by now; returns true if all has.
    fn settle(&mut self, now: Time, number: FlowNumber) -> bool {
        let Some(flow) = &mut self.flows[number as usize] else { return false };
        flow.left -= flow.rate * (now - flow.since) as f64;
        flow.since = now;
        flow.left <= NOTHING
    }

    /// Computes the rates of all flows for which they may have changed. Calls `ends` for each group of flows that share
    /// links, with one that is the first to end, and when.
    pub(super) fn share(&mut self, now: Time, mut ends: impl FnMut(Time, FlowNumber)) {
        let changed = std::mem::take(&mut self.changed);
        let before = self.round;
        for link in changed {
            if self.wires[link as usize].seen > before {
                continue;
            }
            let (links, flows) = self.connected(&[link]);
            flows.iter().for_each(|flow| {
                self.settle(now, *flow);
            });
            self.fill(&links, &flows);
            let end = |number: &FlowNumber| {
                let flow = self.flows[*number as usize].as_ref()?;
                let lasts = (flow.left.max(0.0) / flow.rate).ceil();
                (flow.rate > 0.0).then(|| (now.saturating_add(lasts as Time), *number))
            };
            if let Some((at, flow)) = flows.iter().filter_map(end).min() {
                ends(at, flow);
            }
        }
    }

    /// Returns the links that are connected with these by flows, and those flows.
    fn connected(&mut self, from: &[LinkNumber]) -> (Vec<LinkNumber>, Vec<FlowNumber>) {
        self.round += 1;
        let round = self.round;
        let mut links = Vec::new();
        let mut found = Vec::new();
        for link in from {
            if std::mem::replace(&mut self.wires[*link as usize].seen, round) != round {
                links.push(*link);
            }
        }
        let mut next = 0;
        while let Some(&link) = links.get(next) {
            next += 1;
            for at in 0..self.wires[link as usize].flows.len() {
                let number = self.wires[link as usize].flows[at];
                if std::mem::replace(&mut self.seen[number as usize], round) == round {
                    continue;
                }
                found.push(number);
                let Some(flow) = &self.flows[number as usize] else { continue };
                for other in &flow.route {
                    if std::mem::replace(&mut self.wires[*other as usize].seen, round) != round {
                        links.push(*other);
                    }
                }
            }
        }
        (links, found)
    }

    /// Gives these flows, which are all of these links, their rates: the most crowded link first.
    fn fill(&mut self, links: &[LinkNumber], flows: &[FlowNumber]) {
        for number in flows {
            if let Some(flow) = &mut self.flows[*number as usize] {
                flow.rate = -1.0;
            }
        }
        // Bandwidth that is left, and flows that have no rate yet.
        let mut open: Vec<(LinkNumber, f64, usize)> = links
            .iter()
            .map(|link| (*link, self.wires[*link as usize].capacity, self.wires[*link as usize].flows.len()))
            .filter(|(_, _, flows)| *flows > 0)
            .collect();
        for (at, (link, ..)) in open.iter().enumerate() {
            self.wires[*link as usize].place = at;
        }
        while let Some(narrow) = narrowest(&open) {
            let (link, left, count) = open[narrow];
            let rate = (left / count as f64).max(0.0);
            for at in 0..self.wires[link as usize].flows.len() {
                let number = self.wires[link as usize].flows[at];
                let Some(flow) = &mut self.flows[number as usize] else { continue };
                if flow.rate >= 0.0 {
                    continue;
                }
                flow.rate = rate;
                for other in &flow.route {
                    let (_, left, count) = &mut open[self.wires[*other as usize].place];
                    *left -= rate;
                    *count -= 1;
                }
            }
        }
    }
}

/// Returns the place of the link that gives each of its flows least, if any has flows without a rate.
fn narrowest(open: &[(LinkNumber, f64, usize)]) -> Option<usize> {
    let share = |at: &usize| open[*at].1 / open[*at].2 as f64;
    let with_flows = (0..open.len()).filter(|at| open[*at].2 > 0);
    with_flows.min_by(|a, b| share(a).total_cmp(&share(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABYTE: f64 = 1e9;

    /// Runs flows, each of links and bytes and a time at which it begins, and returns when each ends.
    fn run(bandwidths: &[f64], flows: &[(&[LinkNumber], usize, Time)]) -> Vec<Time> {
        let mut network = Flows::default();
        for bandwidth in bandwidths {
            network.add_link(*bandwidth);
        }
        let mut ended = vec![0; flows.len()];
        let mut begun: Vec<(FlowNumber, usize)> = Vec::new();
        let mut due: Vec<(Time, FlowNumber)> = Vec::new();
        let mut now = 0;
        loop {
            for (at, (route, bytes, _)) in flows.iter().enumerate().filter(|(_, flow)| flow.2 == now) {
                begun.push((network.begin(now, route.to_vec(), *bytes), at));
            }
            network.share(now, |at, flow| due.push((at, flow)));
            let starts = flows.iter().map(|flow| flow.2).filter(|start| *start > now);
            let Some(next) = starts.chain(due.iter().map(|due| due.0)).min() else { return ended };
            now = next;
            let (ready, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at == now);
            due = rest;
            for (_, flow) in ready {
                for done in network.finish(now, flow) {
                    let at = begun.iter().position(|(number, _)| *number == done).unwrap();
                    ended[begun.swap_remove(at).1] = now;
                }
            }
        }
    }

    #[test]
    fn a_flow_alone_has_the_narrowest_link_for_itself() {
        assert_eq!(run(&[GIGABYTE, GIGABYTE / 4.0], &[(&[0, 1], 1000, 0)]), [4000]);
    }

    #[test]
    fn two_flows_halve_a_link_and_the_second_has_it_alone_in_the_end() {
        assert_eq!(run(&[GIGABYTE], &[(&[0], 1000, 0), (&[0], 2000, 0)]), [2000, 3000]);
        // The first is half done when the second comes.
        assert_eq!(run(&[GIGABYTE], &[(&[0], 1000, 0), (&[0], 1000, 500)]), [1500, 2000]);
    }

    #[test]
    fn what_a_flow_cannot_use_goes_to_the_others() {
        // Flow 0 crosses both links, flow 1 the wide one, flows 2 and 3 the narrow one: 1/3, 5/3, 1/3 and 1/3.
        let ends = run(
            &[2.0 * GIGABYTE, GIGABYTE],
            &[(&[0, 1], 1000, 0), (&[0], 5000, 0), (&[1], 1000, 0), (&[1], 1000, 0)],
        );
        assert_eq!(ends, [3000, 3000, 3000, 3000]);
    }

    #[test]
    fn a_cut_link_holds_what_is_on_its_way() {
        let mut network = Flows::default();
        let link = network.add_link(GIGABYTE);
        let flow = network.begin(0, vec![link], 1000);
        let mut due = Vec::new();
        network.share(0, |at, flow| due.push((at, flow)));
        network.set_bandwidth(link, 0.0);
        network.share(400, |at, flow| due.push((at, flow)));
        assert_eq!(due, [(1000, flow)], "nothing is due while it is cut");
        assert!(network.finish(1000, flow).is_empty());
        network.set_bandwidth(link, GIGABYTE);
        network.share(2000, |at, flow| due.push((at, flow)));
        assert_eq!(due[1], (2600, flow));
        assert_eq!(network.finish(2600, flow), [flow]);
    }

    #[test]
    fn rates_are_max_min_fair_on_random_networks() {
        use crate::sim::agenda::Draws;
        let mut draws = Draws::new(1);
        for _ in 0..50 {
            let mut network = Flows::default();
            let links = 2 + draws.word() as usize % 8;
            let capacities: Vec<f64> = (0..links).map(|_| 1.0 + draws.fraction()).collect();
            for capacity in &capacities {
                network.add_link(capacity * 1e9);
            }
            for _ in 0..20 {
                let mut route: Vec<LinkNumber> =
                    (0..3).map(|_| (draws.word() % links as u64) as LinkNumber).collect();
                route.sort_unstable();
                route.dedup();
                network.begin(0, route, 1000);
            }
            network.share(0, |_, _| {});
            let used = |link: usize| -> f64 {
                let flows = network.wires[link].flows.iter();
                flows.map(|flow| network.flows[*flow as usize].as_ref().unwrap().rate).sum()
            };
            for flow in network.flows.iter().flatten() {
                // Each flow has a link that is full, on which none has more than it.
                let held = flow.route.iter().any(|link| {
                    let link = *link as usize;
                    let rates = network.wires[link].flows.iter();
                    let most = rates.map(|flow| network.flows[*flow as usize].as_ref().unwrap().rate);
                    used(link) > capacities[link] - 1e-9 && most.fold(0.0, f64::max) <= flow.rate + 1e-9
                });
                assert!(held);
            }
            assert!((0..links).all(|link| used(link) <= capacities[link] + 1e-9));
        }
    }
}
