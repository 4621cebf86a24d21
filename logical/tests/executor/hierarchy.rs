//! Groups that an executor splits into hosts: jobs on hosts and leaders.

use super::{CHANNEL, options};
use hexagram_logical::executor::{Driving, Executor, GroupHandle, JobOptions, Order, Ticket};
use hexagram_logical::testing::spawn_hosts;
use hexagram_logical::{Buffer, Error, Hierarchy, ReduceOp};
use std::time::Duration;

const HOSTS: [usize; 5] = [0, 0, 1, 1, 1];

fn sum(executor: &Executor, group: &GroupHandle, lane: usize, mine: f32) -> Ticket<f32> {
    let options = JobOptions { order: Order::Lane(lane), ..JobOptions::default() };
    let job = async move |hosts: &Hierarchy| {
        let mut buffer = Buffer::from_slice(&[mine; 3])?;
        hosts.all_reduce(&mut buffer, ReduceOp::Sum).await?;
        let sum = buffer.host::<f32>()?[2];
        Ok(sum)
    };
    // SAFETY: it keeps nothing of the hierarchy, and holds a buffer only.
    unsafe { executor.submit_in_hierarchy(group, options, job) }
}

#[test]
fn jobs_of_several_lanes_run_on_hosts_and_leaders() {
    let ranks = spawn_hosts(&HOSTS, |comm| {
        let executor = Executor::start(comm.world(), CHANNEL, options(Driving::Waiting))?;
        let made = executor.submit_hierarchy(executor.world(), JobOptions::default()).wait(None);
        let group = made.expect("no limit")?;
        let mine = comm.rank() as f32;
        let tickets: Vec<_> = (0..9).map(|at| sum(&executor, &group, at % 3, mine + at as f32)).collect();
        let sums = tickets.iter().map(|ticket| ticket.wait(None).expect("no limit"));
        let sums = sums.collect::<Result<Vec<f32>, _>>()?;
        executor.release(&group);
        let late = sum(&executor, &group, 0, 0.0).wait(None).expect("no limit");
        assert!(matches!(late, Err(Error::Usage { .. })), "{late:?}");
        executor.shutdown(Duration::from_secs(60))?;
        Ok(sums)
    });
    let expected: Vec<f32> = (0..9).map(|at| 10.0 + 5.0 * at as f32).collect();
    assert!(ranks.unwrap().iter().all(|sums| *sums == expected));
}

#[test]
fn a_group_that_was_not_split_is_refused() {
    let ranks = spawn_hosts(&[0], |comm| {
        let executor = Executor::start(comm.world(), CHANNEL, options(Driving::Waiting))?;
        Ok(sum(&executor, executor.world(), 0, 0.0).wait(None).expect("no limit").unwrap_err().to_string())
    });
    assert!(ranks.unwrap()[0].contains("was not split into hosts"));
}
