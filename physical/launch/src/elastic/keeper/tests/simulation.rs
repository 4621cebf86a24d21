//! The keeper with simulated machines and processes, which die, stop, leave and arrive in random order, while messages are in
//! flight.

use super::super::*;
use super::{RANKS, job};
use hexagram_physical::launcher::MemberRequest;
use hexagram_physical::testing::is_deep;
use std::collections::VecDeque;
use tokio::sync::mpsc::UnboundedReceiver;

const NODES: usize = 3;
/// Steps in which something is disturbed, and the most after them.
const DISTURBED: usize = 150;
const MOST_STEPS: usize = 5000;

/// Process as it sees the job.
#[derive(Default)]
struct Simulated {
    /// Its generation and rank.
    member: Option<(u64, usize)>,
    /// Its generation has ended.
    has_changed: bool,
    is_ready: bool,
    is_stopped: bool,
}

/// Machine with its launcher.
#[derive(Default)]
struct Machine {
    /// Lines from the keeper; `None` on its own machine.
    lines: Option<UnboundedReceiver<String>>,
    orders: VecDeque<MemberOrder>,
    reports: VecDeque<MemberReport>,
    processes: BTreeMap<ProcessId, Simulated>,
    is_stopped: bool,
}

impl Machine {
    /// Ends a member with success.
    fn succeed(&mut self) {
        let member = |simulated: &Simulated| simulated.member.is_some() && !simulated.is_ready;
        let found =
            self.processes.iter().find(|(_, simulated)| member(simulated)).map(|(process, _)| *process);
        if let Some(process) = found {
            self.processes.remove(&process);
            self.reports.push_back(MemberReport::Ended(process, None));
        }
    }

    fn has_members(&mut self) -> bool {
        self.processes.values().any(|simulated| simulated.member.is_some())
    }
}

struct Simulation {
    random: u64,
    /// Smallest number of ranks.
    least: usize,
    keeper: Keeper,
    machines: BTreeMap<usize, Machine>,
    /// Sizes and members of the generations.
    generations: BTreeMap<u64, (usize, BTreeMap<usize, ProcessId>)>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let least = 1 + seed as usize % 3;
        let keeper = Keeper::new(&job(NODES, 20), least);
        let (machines, generations) = (BTreeMap::new(), BTreeMap::new());
        let mut simulation = Simulation { random, least, keeper, machines, generations };
        (0..2).for_each(|node| simulation.arrive(node));
        simulation
    }

    /// Returns a random number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize % limit
    }

    fn arrive(&mut self, node: usize) {
        let mut machine = Machine::default();
        if node == 0 {
            self.keeper.arrived(0, None);
        } else {
            let (launcher, lines) = LineSender::channel();
            machine.lines = Some(lines);
            self.keeper.machine(MachineEvent::Arrived(node, launcher));
        }
        self.machines.insert(node, machine);
    }

    fn die(&mut self, node: usize) {
        self.machines.remove(&node);
        self.keeper.machine(MachineEvent::Gone(node));
    }

    /// Moves the orders of the keeper to the machines. A machine that is refused ends.
    fn pass_orders(&mut self) {
        let own = self.keeper.take_orders();
        let mut refused = Vec::new();
        for (node, machine) in &mut self.machines {
            let Some(lines) = &mut machine.lines else {
                machine.orders.extend(own.iter().cloned());
                continue;
            };
            while let Ok(line) = lines.try_recv() {
                match line.strip_prefix("member ") {
                    Some(order) => machine.orders.push_back(MemberOrder::parse(order).unwrap()),
                    None => refused.push(*node),
                }
            }
        }
        refused.into_iter().for_each(|node| self.die(node));
    }

    /// Carries out one order on a machine. Returns false if it has none.
    fn obey(&mut self, node: usize) -> bool {
        let Some(machine) = self.machines.get_mut(&node).filter(|machine| !machine.is_stopped) else {
            return false;
        };
        let Some(order) = machine.orders.pop_front() else { return false };
        match order {
            MemberOrder::Start { process, place, .. } => {
                assert_eq!(place / RANKS, node);
                machine.processes.insert(process, Simulated::default());
                machine.reports.push_back(MemberReport::Started(process, 1));
            }
            MemberOrder::Kill(process) => {
                if machine.processes.contains_key(&process) {
                    machine.reports.push_back(MemberReport::Killing(process));
                }
                self.end(node, process);
            }
            MemberOrder::Send(process, mut notice) => {
                if let Some(simulated) = machine.processes.get_mut(&process) {
                    let notice = MemberNotice::split(&mut notice).unwrap().unwrap();
                    simulated.receive(process, notice, &mut self.generations);
                }
            }
            MemberOrder::Continued | MemberOrder::Over => {}
        }
        true
    }

    /// Ends a process with a failure.
    fn end(&mut self, node: usize, process: ProcessId) {
        let machine = self.machines.get_mut(&node).unwrap();
        if machine.processes.remove(&process).is_some() {
            machine.reports.push_back(MemberReport::Ended(process, Some("died".into())));
        }
    }

    /// Delivers one report of a machine. Returns false if it has none.
    fn report(&mut self, node: usize) -> bool {
        let Some(machine) = self.machines.get_mut(&node).filter(|machine| !machine.is_stopped) else {
            return false;
        };
        let Some(report) = machine.reports.pop_front() else { return false };
        match node {
            0 => assert!(self.keeper.report(0, report)),
            _ => self.keeper.machine(MachineEvent::Message(node, report.to_string())),
        }
        true
    }

    /// Makes each process of a machine that can continue ask for its next generation. Returns false if there is none.
    fn act(&mut self, node: usize) -> bool {
        let silent = self.silent_ranks();
        let Some(machine) = self.machines.get_mut(&node).filter(|machine| !machine.is_stopped) else {
            return false;
        };
        let mut has_acted = false;
        for (process, simulated) in &mut machine.processes {
            let failed = simulated.member.and_then(|(number, _)| silent.get(&number));
            let is_waiting = simulated.member.is_none() || simulated.has_changed || failed.is_some();
            if simulated.is_stopped || simulated.is_ready || !is_waiting {
                continue;
            }
            if let (Some((generation, _)), Some(rank)) = (simulated.member, failed) {
                let accusation = MemberRequest::Failed { generation, rank: *rank };
                machine.reports.push_back(MemberReport::Request(*process, accusation));
            }
            machine.reports.push_back(MemberReport::Request(*process, MemberRequest::Ready));
            simulated.is_ready = true;
            has_acted = true;
        }
        has_acted
    }

    /// Returns a rank of each generation that does not answer: its process is stopped, or dead.
    fn silent_ranks(&self) -> BTreeMap<u64, usize> {
        let answers = |process: &ProcessId| {
            let machines = self.machines.values().filter(|machine| !machine.is_stopped);
            let found = machines.filter_map(|machine| machine.processes.get(process)).next();
            found.is_some_and(|simulated| !simulated.is_stopped)
        };
        let silent = |members: &BTreeMap<usize, ProcessId>| {
            members.iter().find(|(_, process)| !answers(process)).map(|(rank, _)| *rank)
        };
        let generations = self.generations.iter();
        generations.filter_map(|(number, (_, members))| Some((*number, silent(members)?))).collect()
    }

    /// Lets something happen to a machine or a process.
    fn disturb(&mut self) {
        let node = self.below(NODES);
        let Some(machine) = self.machines.get(&node) else { return self.arrive(node) };
        let processes: Vec<ProcessId> = machine.processes.keys().copied().collect();
        match self.below(8) {
            0 if node > 0 => self.die(node),
            1 if node > 0 => self.machines.get_mut(&node).unwrap().is_stopped = true,
            kind if !processes.is_empty() => {
                let process = processes[self.below(processes.len())];
                if kind < 5 {
                    return self.end(node, process);
                }
                let simulated = self.machines.get_mut(&node).unwrap().processes.get_mut(&process).unwrap();
                // A rank or a newcomer is stopped, or a rank calls `World::next` on its own. No launcher waits for a limited time
                // for the first ranks, or for a newcomer without which too few are left.
                let may_stop = simulated.member.is_some() || self.least == 1 && !self.generations.is_empty();
                simulated.is_stopped |= kind == 5 && may_stop;
                simulated.has_changed |= kind > 5;
            }
            _ => {}
        }
    }

    /// Takes a step on a random machine. Returns false if none has anything to do.
    fn step(&mut self) -> bool {
        let (first, kind) = (self.below(NODES), self.below(3));
        let has_done = (0..3 * NODES).any(|nth| {
            let node = (first + nth) % NODES;
            match (kind + nth / NODES) % 3 {
                0 => self.obey(node),
                1 => self.report(node),
                _ => self.act(node),
            }
        });
        self.pass_orders();
        has_done
    }

    /// Lets the time until the next action of the keeper pass. Returns false if there is none.
    fn wait(&mut self) -> bool {
        let Some(next) = self.keeper.next_time() else { return false };
        let by = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let keeper = &mut self.keeper;
        keeper.starts.iter_mut().for_each(|(at, ..)| *at -= by);
        let kills = keeper.late.values_mut().chain(keeper.awaited.values_mut());
        kills.chain(&mut keeper.gathering).for_each(|at| *at -= by);
        keeper.timer();
        self.pass_orders();
        true
    }

    /// Ends the connection to a stopped machine, which has been silent for too long. Returns false if there is none.
    fn lose_stopped(&mut self) -> bool {
        let stopped = self.machines.iter().find(|(_, machine)| machine.is_stopped).map(|(node, _)| *node);
        stopped.into_iter().for_each(|node| self.die(node));
        self.pass_orders();
        stopped.is_some()
    }

    fn run(mut self, seed: u64) {
        for _ in 0..DISTURBED {
            match self.below(10) {
                0 => self.disturb(),
                1 => drop(self.wait()),
                _ => drop(self.step()),
            }
            self.pass_orders();
        }
        let mut steps = 0..MOST_STEPS;
        while !self.keeper.is_hopeless() && (self.step() || self.wait() || self.lose_stopped()) {
            assert!(steps.next().is_some(), "seed {seed}: no end");
        }
        // If all ranks are stopped, none is left that misses another.
        if !self.keeper.is_hopeless() && self.processes().any(|simulated| !simulated.is_stopped) {
            self.check_that_all_work(seed);
            self.succeed(seed);
        }
    }

    fn processes(&self) -> impl Iterator<Item = &Simulated> {
        self.machines.values().flat_map(|machine| machine.processes.values())
    }

    /// Ends the members one after the other, while a machine arrives. Fails unless nothing is left.
    fn succeed(mut self, seed: u64) {
        let mut steps = 0..MOST_STEPS;
        while self.keeper.is_active() {
            assert!(steps.next().is_some(), "seed {seed}: no end after the work");
            if self.below(4) == 0 {
                let node = self.below(NODES);
                match self.machines.get_mut(&node) {
                    None => self.arrive(node),
                    Some(machine) => machine.succeed(),
                }
                self.pass_orders();
            } else if !self.step() && !self.machines.values_mut().any(Machine::has_members) {
                self.wait();
            }
        }
        let left = self.processes().count();
        assert_eq!((left, self.keeper.failure()), (0, None), "seed {seed}");
    }

    /// Fails unless all processes that can work are the members of the newest generation.
    fn check_that_all_work(&self, seed: u64) {
        let last = self.generations.last_key_value();
        let (number, (size, members)) = last.unwrap_or_else(|| panic!("seed {seed}: no generation"));
        assert_eq!(members.len(), *size, "seed {seed}");
        let machines = self.machines.values().filter(|machine| !machine.is_stopped);
        let working = machines.flat_map(|machine| &machine.processes).filter(|(_, one)| !one.is_stopped);
        let mut found = 0;
        for (process, simulated) in working {
            let is_member = simulated.member.is_some_and(|(of, _)| of == *number) && !simulated.has_changed;
            assert!(
                is_member && !simulated.is_ready,
                "seed {seed}: process {process} of generation {number}"
            );
            found += 1;
        }
        assert_eq!(found, *size, "seed {seed}");
    }
}

impl Simulated {
    fn receive(
        &mut self,
        process: ProcessId,
        notice: MemberNotice,
        generations: &mut BTreeMap<u64, (usize, BTreeMap<usize, ProcessId>)>,
    ) {
        match notice {
            MemberNotice::Generation { number, rank, size } => {
                assert!(self.is_ready && self.member.is_none_or(|(last, _)| last < number));
                let (known, members) = generations.entry(number).or_insert((size, BTreeMap::new()));
                assert_eq!(*known, size);
                assert_eq!(members.insert(rank, process), None);
                *self = Simulated {
                    member: Some((number, rank)),
                    is_stopped: self.is_stopped,
                    ..Self::default()
                };
            }
            MemberNotice::Changed { generation, .. } => {
                self.has_changed |= self.member.is_some_and(|(number, _)| number == generation);
            }
            _ => {}
        }
    }
}

/// 1,000 seeds, and 20,000 under `./test deep`.
#[test]
fn all_that_are_left_work_in_one_generation_whatever_happens() {
    for seed in 0..if is_deep() { 20_000 } else { 1000 } {
        Simulation::new(seed).run(seed);
    }
}
