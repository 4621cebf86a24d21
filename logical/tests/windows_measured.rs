//! Measurements, not tests: the times of a put, a get and a pair exchange.
//!
//! `cargo test --release -p hexagram-logical --test tests windows_measured -- --ignored --nocapture`

use hexagram_logical::asynchronous::{PairExchange, PairOptions, Service, Window};
use hexagram_logical::testing::{TRANSPORTS, spawn};
use hexagram_logical::{Buffer, DType, Result};
use std::time::{Duration, Instant};

/// The shortest and the median of `times` turns.
fn turns(times: usize, mut turn: impl FnMut() -> Result<()>) -> Result<(Duration, Duration)> {
    let mut took = Vec::new();
    for _ in 0..times {
        let started = Instant::now();
        turn()?;
        took.push(started.elapsed());
    }
    took.sort();
    Ok((took[0], took[times / 2]))
}

#[test]
#[ignore = "prints times, proves nothing"]
fn what_asking_another_rank_costs() {
    for transport in TRANSPORTS {
        for (bytes, times) in [(8, 2000), (4 << 20, 100)] {
            spawn(transport, 2, |comm| {
                let service = comm.block_on(Service::start(&comm))?;
                let mine = Buffer::zeroed(DType::F32, bytes / 4)?;
                let peer = 1 - comm.rank();
                let window = comm.block_on(Window::create(&comm, &service, &mine, &[peer], None))?;
                let pair = comm.block_on(PairExchange::create(&comm, &service, &mine, PairOptions::default()))?;
                if comm.rank() == 0 {
                    let to = [(peer, 1.0)];
                    let put = turns(times, || window.put(1.0, &to).blocking())?;
                    let get = turns(times, || window.get(&to).blocking())?;
                    let exchange = turns(times, || pair.exchange(peer).blocking().map(drop))?;
                    println!(
                        "{transport}, {bytes} B, shortest and median: put {put:.1?}, get {get:.1?}, exchange {exchange:.1?}"
                    );
                }
                service.blocking().close()
            })
            .unwrap();
        }
    }
}
