//! Tagged messages: they match as in a model with queues, from certain ranks and from any, and a wait for a missing
//! message ends with an error. No rank leaves a barrier early.

use hexagram_logical::testing::{self, TRANSPORTS, cases, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result, TransportKind};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Barrier;
use std::task::Poll;
use std::time::Duration;

type Job<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs jobs at the same time, begun in their order.
fn all(comm: &Communicator, mut jobs: Vec<Job<'_>>) -> Result<()> {
    comm.block_on(poll_fn(|context| {
        let mut failed = None;
        jobs.retain_mut(|job| match job.as_mut().poll(context) {
            Poll::Ready(outcome) => {
                failed = failed.take().or(outcome.err());
                false
            }
            Poll::Pending => true,
        });
        match (failed, jobs.is_empty()) {
            (Some(error), _) => Poll::Ready(Err(error)),
            (None, true) => Poll::Ready(Ok(())),
            (None, false) => Poll::Pending,
        }
    }))
}

fn of_one(value: u32) -> Result<Buffer> {
    Buffer::from_slice(&[value as i32])
}

/// A message: its sender, receiver, tag, and number of elements. Its elements identify it.
#[derive(Debug, Clone)]
struct Message {
    from: usize,
    to: usize,
    tag: u32,
}

/// The messages of all ranks, in order, and which receives name the sender.
#[derive(Debug, Clone)]
struct Script {
    ranks: usize,
    len: usize,
    messages: Vec<Message>,
    /// Number of receives from each sender before those from any, for each receiver and tag.
    named: usize,
}

/// Receives of one rank under one tag: senders that are named, in order, and the number of receives from any after them.
struct Receives {
    named: Vec<usize>,
    any: usize,
}

impl Script {
    fn strategy() -> impl Strategy<Value = Script> {
        (2..5usize).prop_flat_map(|ranks| {
            let message = (0..ranks, 0..ranks, prop_oneof![Just(0), Just(1), Just(65_536), Just(u32::MAX)]);
            let message = message.prop_map(|(from, to, tag)| Message { from, to, tag });
            let messages = prop::collection::vec(message, 0..24);
            // Small messages and large ones travel differently.
            let len = prop_oneof![Just(1), Just(300), Just(100_000)];
            (messages, 0..4usize, len).prop_map(move |(messages, named, len)| Script {
                ranks,
                len,
                messages,
                named,
            })
        })
    }

    /// Returns the values that `rank` receives under each tag.
    fn receives(&self, rank: usize) -> BTreeMap<u32, Receives> {
        let mut of_tag: BTreeMap<u32, Receives> = BTreeMap::new();
        for Message { from, tag, .. } in self.messages.iter().filter(|message| message.to == rank) {
            let receives = of_tag.entry(*tag).or_insert(Receives { named: Vec::new(), any: 0 });
            if receives.named.iter().filter(|named| *named == from).count() < self.named {
                receives.named.push(*from);
            } else {
                receives.any += 1;
            }
        }
        of_tag
    }

    /// Runs the script, and compares the received values with queues of the sent ones.
    fn run(&self, comm: &Communicator) -> Result<()> {
        let rank = comm.rank();
        let of = |number: usize| Buffer::from_slice(&vec![number as i32; self.len]);
        let mine: Vec<(usize, &Message)> =
            self.messages.iter().enumerate().filter(|(_, message)| message.from == rank).collect();
        let sent = mine.iter().map(|(number, _)| of(*number)).collect::<Result<Vec<_>>>()?;
        let mut plan: Vec<(u32, Option<usize>)> = Vec::new();
        for (tag, receives) in self.receives(rank) {
            plan.extend(receives.named.iter().map(|from| (tag, Some(*from))));
            plan.extend((0..receives.any).map(|_| (tag, None)));
        }
        let mut got = plan.iter().map(|_| of(usize::MAX >> 33)).collect::<Result<Vec<_>>>()?;
        let mut from = vec![rank; plan.len()];
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for ((buffer, sender), (tag, named)) in got.iter_mut().zip(&mut from).zip(&plan) {
            jobs.push(Box::pin(async move {
                *sender = match named {
                    Some(named) => comm.recv_tagged(buffer, *named, *tag).await.map(|()| *named)?,
                    None => comm.recv_any(buffer, *tag).await?,
                };
                Ok(())
            }));
        }
        for (buffer, (_, message)) in sent.iter().zip(&mine) {
            jobs.push(Box::pin(comm.send_tagged(buffer, message.to, message.tag)));
        }
        all(comm, jobs)?;
        self.check(rank, &plan, &from, &got)
    }

    /// Takes from the queue of each pair and tag the values that a rank received, in their order.
    fn check(
        &self,
        rank: usize,
        plan: &[(u32, Option<usize>)],
        from: &[usize],
        got: &[Buffer],
    ) -> Result<()> {
        let mut queues: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
        for (number, message) in self.messages.iter().enumerate().filter(|(_, message)| message.to == rank) {
            queues.entry((message.from, message.tag)).or_default().push(number);
        }
        for (((tag, named), from), buffer) in plan.iter().zip(from).zip(got) {
            assert!(named.is_none_or(|named| named == *from));
            let number = queues.get_mut(&(*from, *tag)).unwrap().remove(0);
            assert!(buffer.host::<i32>()?.iter().all(|value| *value == number as i32), "message {number}");
        }
        assert!(queues.values().all(Vec::is_empty), "{queues:?}");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn messages_meet_as_in_queues(script in Script::strategy()) {
        for transport in testing::on_threads() {
            spawn(transport, script.ranks, |comm| script.run(&comm)).unwrap();
        }
    }
}

/// Returns a script in which all ranks send to all, themselves included.
fn everyone(ranks: usize, len: usize) -> Script {
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let messages = pairs.flat_map(|(from, to)| [5, 5, 9, 5].map(|tag| Message { from, to, tag })).collect();
    Script { ranks, len, messages, named: 1 }
}

#[test]
fn all_ranks_exchange_messages_under_the_same_tags() {
    for (transport, ranks) in cases(&[1, 2, 3, 4]) {
        for len in [0, 1, 70_000] {
            spawn(transport, ranks, |comm| everyone(ranks, len).run(&comm))
                .unwrap_or_else(|error| panic!("{transport} × {ranks}, {len}: {error}"));
        }
    }
}

#[test]
fn tags_disturb_no_other_operation() {
    for (transport, ranks) in cases(&[2, 3]) {
        spawn(transport, ranks, |comm| {
            let next = (comm.rank() + 1) % ranks;
            let previous = (comm.rank() + ranks - 1) % ranks;
            let group = comm.block_on(comm.split(Some(0), 0))?.unwrap();
            let [tagged, plain, of_group] = [1, 2, 3].map(|value| of_one(value).unwrap());
            let [mut a, mut b, mut c] = [0; 3].map(|value| of_one(value).unwrap());
            let mut sum = Buffer::from_slice(&[1.0f32])?;
            let jobs: Vec<Job<'_>> = vec![
                Box::pin(group.recv_tagged(&mut c, previous, 0)),
                Box::pin(comm.recv(&mut b, previous)),
                Box::pin(comm.recv_tagged(&mut a, previous, 0)),
                Box::pin(comm.all_reduce(&mut sum, ReduceOp::Sum)),
                Box::pin(comm.send_tagged(&tagged, next, 0)),
                Box::pin(group.send_tagged(&of_group, next, 0)),
                Box::pin(comm.send(&plain, next)),
            ];
            all(&comm, jobs)?;
            let got = [&a, &b, &c].map(|buffer| buffer.host::<i32>().unwrap()[0]);
            assert_eq!((got, sum.host::<f32>()?[0]), ([1, 2, 3], ranks as f32));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{transport} × {ranks}: {error}"));
    }
}

/// Runs three ranks over every transport, after all have opened, and passes the outcome of rank 0 to `check`.
fn outcome_of_rank_0(
    body: impl Fn(&Communicator) -> Result<()> + Sync,
    others: impl Fn(&Communicator) -> Result<()> + Sync,
    check: impl Fn(TransportKind, Error),
) {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    for transport in TRANSPORTS {
        let barrier = Barrier::new(3);
        let outcomes = spawn(transport, 3, |comm| {
            barrier.wait();
            Ok(if comm.rank() == 0 { body(&comm) } else { others(&comm) })
        });
        check(transport, outcomes.unwrap().swap_remove(0).unwrap_err());
    }
}

fn receive_any(comm: &Communicator) -> Result<()> {
    let mut buffer = Buffer::zeroed(DType::F32, 4)?;
    comm.block_on(comm.recv_any(&mut buffer, 9)).map(drop)
}

#[test]
fn a_failure_of_any_rank_ends_a_receive_from_any_with_its_name() {
    let give_up = |comm: &Communicator| {
        if comm.rank() == 2 {
            comm.give_up(&Error::usage("this rank cannot go on", "let it"));
            return Ok(());
        }
        receive_any(comm)
    };
    outcome_of_rank_0(receive_any, give_up, |transport, error| {
        assert!(
            matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 2),
            "{transport}: {error}"
        );
        assert!(error.to_string().contains("message(4 × f32), tag 9"), "{error}");
    });
}

#[test]
fn a_receive_from_any_ends_once_all_others_have_left() {
    outcome_of_rank_0(
        receive_any,
        |_| Ok(()),
        |transport, error| {
            assert!(matches!(&error, Error::PeerFailed { .. }), "{transport}: {error}");
        },
    );
}

#[test]
fn a_receive_from_any_is_late_without_a_name() {
    let is_over = Barrier::new(3);
    let late = |comm: &Communicator| {
        comm.set_deadline(Duration::from_millis(200));
        let outcome = receive_any(comm);
        is_over.wait();
        outcome
    };
    let idle = |_: &Communicator| {
        is_over.wait();
        Ok(())
    };
    outcome_of_rank_0(late, idle, |transport, error| {
        assert!(matches!(&error, Error::Deadline { waiting_for: None, .. }), "{transport}: {error}");
        let text = error.to_string();
        assert!(text.contains("no answer from any rank") && text.contains("tag 9"), "{error}");
    });
}

#[test]
fn a_message_of_another_size_or_type_is_named_on_the_receiver() {
    for named in [false, true] {
        let receive = |comm: &Communicator| {
            let mut buffer = Buffer::zeroed(DType::F32, 4)?;
            match named {
                true => comm.block_on(comm.recv_tagged(&mut buffer, 1, 9)),
                false => comm.block_on(comm.recv_any(&mut buffer, 9)).map(drop),
            }
        };
        let send = |comm: &Communicator| match comm.rank() {
            1 => comm.block_on(comm.send_tagged(&Buffer::zeroed(DType::I32, 5)?, 0, 9)),
            _ => Ok(()),
        };
        outcome_of_rank_0(receive, send, |transport, error| {
            assert!(matches!(&error, Error::Mismatch { peer, .. } if peer.rank == 1), "{transport}: {error}");
            let text = error.to_string();
            let words = ["the messages with tag 9", "message(4 × f32)", "message(5 × i32)", "under each tag"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        });
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    if skipped_under_mpi("its ranks count in memory of the process") {
        return;
    }
    use std::sync::atomic::{AtomicUsize, Ordering};
    for transport in TRANSPORTS {
        for ranks in [1, 2, 3, 4, 5, 8] {
            let arrived = AtomicUsize::new(0);
            spawn(transport, ranks, |comm| {
                for round in 1..=20 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    comm.blocking().barrier()?;
                    assert!(arrived.load(Ordering::SeqCst) >= round * ranks);
                    comm.blocking().barrier()?;
                }
                Ok(())
            })
            .unwrap();
        }
    }
}
