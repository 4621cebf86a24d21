//! Tests of flows: fair shares of links, and when bytes have left.

use super::*;
use crate::sim::schedule::agenda::RandomDraws;
use std::collections::BTreeMap;

const GIGABYTE: f64 = 1e9;

fn finish(
    network: &mut Flows,
    now: Nanoseconds,
    cohort: CohortNumber,
) -> (Vec<FlowNumber>, Option<Nanoseconds>) {
    let mut done = Vec::new();
    let due = network.finish(now, cohort, &mut done);
    done.iter().for_each(|flow| network.end(now, *flow));
    (done, due)
}

fn begin(network: &mut Flows, now: Nanoseconds, links: &[LinkNumber], bytes: usize) -> FlowNumber {
    let route = network.add_route(links.iter().copied());
    network.begin(now, route, bytes)
}

/// Flow of a test: its links, its bytes, and the time at which it begins.
type Planned<'a> = (&'a [LinkNumber], usize, Nanoseconds);

/// Runs flows and returns when each ends, and how often links were shared: at every change if `at_once`.
fn run_sharing(bandwidths: &[f64], flows: &[Planned<'_>], at_once: bool) -> (Vec<Nanoseconds>, usize) {
    let mut network = Flows::default();
    for bandwidth in bandwidths {
        network.add_link(*bandwidth);
    }
    let mut ended = vec![0; flows.len()];
    let mut begun: BTreeMap<FlowNumber, usize> = BTreeMap::new();
    let mut due: Vec<(Nanoseconds, CohortNumber)> = Vec::new();
    let mut shared = 0;
    let mut now = 0;
    loop {
        for (at, (route, bytes, _)) in flows.iter().enumerate().filter(|(_, flow)| flow.2 == now) {
            begun.insert(begin(&mut network, now, route, *bytes), at);
        }
        if at_once {
            network.changes.hurry(now);
        }
        if network.share_at().is_some_and(|at| at <= now) {
            network.share(now, |at, cohort| due.push((at, cohort)));
            shared += 1;
        }
        let starts = flows.iter().map(|flow| flow.2).filter(|start| *start > now);
        let times = starts.chain(due.iter().map(|due| due.0)).chain(network.share_at());
        let Some(next) = times.min() else { return (ended, shared) };
        now = next;
        let (ready, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at == now);
        due = rest;
        for (_, cohort) in ready {
            let (done, again) = finish(&mut network, now, cohort);
            due.extend(again.map(|at| (at, cohort)));
            done.iter().filter_map(|done| begun.remove(done)).for_each(|at| ended[at] = now);
        }
    }
}

/// Runs flows and returns when each ends.
fn run(bandwidths: &[f64], flows: &[Planned<'_>]) -> Vec<Nanoseconds> {
    run_sharing(bandwidths, flows, false).0
}

/// Lets time pass until all links are shared.
fn share_all(network: &mut Flows) {
    while let Some(now) = network.share_at() {
        network.share(now, |_, _| {});
    }
}

#[test]
fn a_flow_alone_has_the_narrowest_link_for_itself() {
    assert_eq!(run(&[GIGABYTE, GIGABYTE / 4.0], &[(&[0, 1], 1000, 0)]), [4000]);
}

#[test]
fn two_flows_halve_a_link_and_the_second_has_it_alone_in_the_end() {
    assert_eq!(run(&[GIGABYTE], &[(&[0], 1000, 0), (&[0], 2000, 0)]), [2000, 3000]);
    // The first is half done when the second starts.
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
fn a_link_without_bandwidth_holds_what_is_on_its_way() {
    let mut network = Flows::default();
    let link = network.add_link(GIGABYTE);
    let flow = begin(&mut network, 0, &[link], 1000);
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    network.set_bandwidth(400, link, 0.0);
    network.share(400, |at, cohort| due.push((at, cohort)));
    assert!(matches!(due[..], [(1000, _)]), "nothing is due without flows: {due:?}");
    assert_eq!(finish(&mut network, 1000, due[0].1), (vec![], None));
    network.set_bandwidth(2000, link, GIGABYTE);
    network.share(2000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due[1].0, 2600);
    assert_eq!(finish(&mut network, 2600, due[1].1), (vec![flow], None));
}

impl Flows {
    fn rate(&self, flow: FlowNumber) -> f64 {
        self.flows[flow as usize].rate
    }

    /// Returns the total rate of flows on a link.
    fn sum(&self, link: usize) -> f64 {
        self.wires[link].flows.iter().map(|flow| self.rate(*flow)).sum()
    }

    /// Fails unless each flow has a link that is full, on which none has more than it, and no link carries more than it
    /// can.
    fn check_fairness(&self, tolerance: f64) {
        for (number, flow) in self.flows.iter().enumerate().filter(|(_, flow)| flow.lives) {
            let held = self.routes[flow.route.range()].iter().any(|link| {
                let wire = &self.wires[*link as usize];
                let most = wire.flows.iter().map(|flow| self.rate(*flow)).fold(0.0, f64::max);
                self.sum(*link as usize) >= wire.capacity * (1.0 - tolerance)
                    && most <= flow.rate * (1.0 + tolerance)
            });
            assert!(held, "flow {number} could have more than {}", flow.rate);
        }
        for (number, wire) in self.wires.iter().enumerate() {
            let sum = self.sum(number);
            assert!(sum <= wire.capacity * (1.0 + 1e-9), "link {number} carries {sum} of {}", wire.capacity);
            assert!((sum - wire.used).abs() <= 1e-9 * wire.capacity);
        }
    }
}

#[test]
fn rates_are_max_min_fair_on_random_networks_whatever_begins_and_ends() {
    let mut draws = RandomDraws::new(1);
    for _ in 0..50 {
        let mut network = Flows::default();
        let links = 2 + draws.word() as usize % 30;
        for _ in 0..links {
            network.add_link((1.0 + draws.fraction()) * 1e9);
        }
        let mut alive = Vec::new();
        let mut now = 0;
        for _ in 0..100 {
            now += 1;
            for _ in 0..1 + draws.word() % 3 {
                if draws.fraction() < 0.4 && !alive.is_empty() {
                    network.end(now, alive.swap_remove(draws.word() as usize % alive.len()));
                    continue;
                }
                let mut route: Vec<LinkNumber> =
                    (0..3).map(|_| (draws.word() % links as u64) as LinkNumber).collect();
                route.sort_unstable();
                route.dedup();
                alive.push(begin(&mut network, now, &route, 1_000_000_000));
            }
            if draws.fraction() < 0.1 {
                let link = draws.word() % links as u64;
                network.set_bandwidth(now, link as LinkNumber, (0.5 + draws.fraction()) * 1e9);
            }
            while let Some(at) = network.share_at() {
                now = at;
                network.share(now, |_, _| {});
            }
            // A rate is compared with the level of its link, and that with the largest rate.
            network.check_fairness(3.0 * fair::TOLERANCE);
        }
    }
}

#[test]
fn what_changes_far_away_changes_nothing_here() {
    // Every host of 20 sends to every other: two links each, one either way.
    const HOSTS: u32 = 20;
    let mut network = Flows::default();
    for _ in 0..2 * HOSTS {
        network.add_link(GIGABYTE);
    }
    let mut flows = Vec::new();
    for from in 0..HOSTS {
        for to in (0..HOSTS).filter(|to| *to != from) {
            flows.push(begin(&mut network, 0, &[from, HOSTS + to], 1_000_000));
        }
    }
    share_all(&mut network);
    let even = 1.0 / f64::from(HOSTS - 1);
    assert!(flows.iter().all(|flow| (network.rate(*flow) - even).abs() < 1e-9));
    network.end(500_000, flows.remove(0));
    share_all(&mut network);
    let renewed = flows.iter().filter(|flow| network.flows[**flow as usize].since >= 500_000).count();
    // The others on its two links; their rates stay, since each has another full link.
    assert_eq!(renewed as u32, 2 * (HOSTS - 2));
    assert!(flows.iter().all(|flow| (network.rate(*flow) - even).abs() < 1e-9));
    network.check_fairness(fair::TOLERANCE);
}

#[test]
fn a_cohort_is_looked_at_until_its_last_flow_has_ended() {
    let mut network = Flows::default();
    let links = [network.add_link(GIGABYTE), network.add_link(GIGABYTE)];
    let first = begin(&mut network, 0, &links[..1], 1000);
    let last = begin(&mut network, 0, &links[1..], 3000);
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    let [(1000, cohort)] = due[..] else { panic!("{due:?}") };
    assert_eq!(finish(&mut network, 999, cohort), (vec![], None));
    assert_eq!(finish(&mut network, 1000, cohort), (vec![first], Some(3000)));
    network.share(1000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due.len(), 1, "the rate of the other one is the same");
    assert_eq!(finish(&mut network, 3000, cohort), (vec![last], None));
    assert!(network.free_cohorts.contains(&cohort));
}

#[test]
fn a_flow_that_goes_on_with_other_bytes_changes_no_rate() {
    let mut network = Flows::default();
    let link = network.add_link(GIGABYTE);
    let flows = [1000, 4000].map(|bytes| begin(&mut network, 0, &[link], bytes));
    let mut due = Vec::new();
    network.share(0, |at, cohort| due.push((at, cohort)));
    let [(2000, cohort)] = due[..] else { panic!("{due:?}") };
    let mut done = Vec::new();
    assert_eq!(network.finish(2000, cohort, &mut done), Some(8000));
    assert_eq!(done, flows[..1]);
    network.renew(2000, flows[0], 500);
    assert!(network.share_at().is_some());
    network.share(2000, |at, cohort| due.push((at, cohort)));
    assert_eq!(network.flows[flows[1] as usize].since, 0, "the other one is not looked at");
    let (at, other) = due[1];
    assert_eq!((at, finish(&mut network, at, other)), (3000, (vec![flows[0]], None)));
    // The second one has the link for itself then.
    network.share(3000, |at, cohort| due.push((at, cohort)));
    assert_eq!(due[2].0, 5500);
    network.check_fairness(0.0);
}

impl Changes {
    /// Lets nothing wait.
    fn hurry(&mut self, now: Nanoseconds) {
        self.urgent.append(&mut self.deferred);
        self.deferred_until = None;
        self.due = (!self.urgent.is_empty()).then_some(now);
    }
}

/// Returns flows of every host to every other, started one after another within microseconds, with sizes that differ
/// by up to `factor`.
fn all_to_all(
    hosts: u32,
    factor: f64,
    draws: &mut RandomDraws,
) -> Vec<([LinkNumber; 2], usize, Nanoseconds)> {
    let mut flows = Vec::new();
    for from in 0..hosts {
        let mut now = draws.word() % 20_000;
        for step in 1..hosts {
            let bytes = 2e5 * factor.powf(-draws.fraction());
            flows.push(([from, hosts + (from + step) % hosts], bytes as usize, now));
            now += 3000 + draws.word() % 2000;
        }
    }
    flows
}

#[test]
fn crowded_links_are_shared_less_often_and_flows_take_what_they_would() {
    const HOSTS: u32 = 40;
    let links = [1.25 * GIGABYTE; 2 * HOSTS as usize];
    let mut draws = RandomDraws::new(3);
    for factor in [1.0, 100.0] {
        let flows = all_to_all(HOSTS, factor, &mut draws);
        let flows: Vec<Planned<'_>> =
            flows.iter().map(|(links, bytes, begins)| (&links[..], *bytes, *begins)).collect();
        let (exact, often) = run_sharing(&links, &flows, true);
        let (ends, seldom) = run_sharing(&links, &flows, false);
        assert!(factor > 1.0 || seldom < often / 2, "{seldom} times instead of {often}");
        let miss = |(planned, (exact, end)): (&Planned<'_>, (&Nanoseconds, &Nanoseconds))| {
            exact.abs_diff(*end) as f64 / (exact - planned.2) as f64
        };
        let misses: Vec<f64> = flows.iter().zip(exact.iter().zip(&ends)).map(miss).collect();
        let largest = misses.iter().copied().fold(0.0, f64::max);
        let mean = misses.iter().sum::<f64>() / misses.len() as f64;
        assert!(largest < 0.03 && mean < 0.004, "{factor}: {largest} at most, {mean} on average");
        assert!(largest > 0.0, "nothing has waited");
    }
}
