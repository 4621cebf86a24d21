//! The roles of a job's ranks, each in a separate process.

use crate::processes::job::{DEADLINE, TRANSPORT};
use hexagram_logical::asynchronous::{
    Add, Background, Clock, Model, PairExchange, PairOptions, Server, ServerOptions, Service, Window,
};
use hexagram_logical::codec::named;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::executor::{Executor, ExecutorOptions, JobOptions, Order};
use hexagram_logical::{Buffer, Communicator, DType, Error, JoinOptions, ReduceOp, Result, World, testing};
use hexagram_physical::HeartbeatOptions;
use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// The heartbeat of roles that do not test its default.
const BEAT: Duration = Duration::from_millis(100);
/// Time after which these roles warn.
pub(crate) const LATE: Duration = Duration::from_millis(1500);
/// Time after which they give up: longer than the limit for silent processes. On a busy machine the ranks begin seconds
/// apart, and each has to warn before the first one gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(12);

/// Plays the role, and reports how it ended.
pub(crate) fn play(role: &str) {
    match communicate(role) {
        Ok(()) => eprintln!("finished"),
        Err(error) => eprintln!("failed: {} {error}", culprit(&error)),
    }
}

/// The rank that an error names.
fn culprit(error: &Error) -> String {
    let peer = match error {
        Error::PeerFailed { culprit, .. } => Some(culprit),
        Error::Deadline { stragglers, .. } => stragglers.first().map(|straggler| &straggler.peer),
        _ => None,
    };
    peer.map_or_else(|| "nobody".to_owned(), |peer| peer.rank.to_string())
}

fn communicate(role: &str) -> Result<()> {
    let transport = env::var(TRANSPORT).unwrap().parse()?;
    let mut options = JoinOptions { transport, ..JoinOptions::default() };
    if ["chain", "absent", "circle", "leaver", "early end"].contains(&role) {
        options.heartbeat = Some(HeartbeatOptions { beat: BEAT, silence: 100 * BEAT, late: LATE });
    }
    if role.ends_with("device") {
        options.heartbeat = Some(HeartbeatOptions { beat: BEAT, late: LATE, ..HeartbeatOptions::default() });
    }
    let world = World::join(&options)?;
    eprintln!("joined");
    match role {
        "collectives" => collectives(&world),
        "impatient collectives" => {
            world.set_deadline(Duration::from_secs(5));
            collectives(&world)
        }
        "device" => on_device(&world, DEADLINE),
        "impatient device" => on_device(&world, Duration::from_secs(5)),
        "chain" => chain(&world),
        "absent" => absent(&world),
        "circle" => circle(&world),
        "leaver" => leaver(&world),
        "early end" => early_end(world),
        "first quits" => quits(&world, 0),
        "last quits" => quits(&world, world.size() - 1),
        "background" => background(&world),
        "executor" => executor(&world),
        "server" => server(&world, 0),
        "stale server" => server(&world, 2),
        "window" => window(&world),
        "pairs" => pairs(&world),
        "closing" => closing(&world),
        _ => unreachable!("nobody plays {role}"),
    }
}

/// One collective after the other, of all sizes, until something fails.
fn collectives(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    let blocking = comm.blocking();
    let size = comm.size();
    let mut registered = comm.registered(DType::F32, 200_000)?;
    let mut part = comm.registered(DType::F32, 30_000)?;
    let mut whole = comm.registered(DType::F32, 30_000 * size)?;
    for round in 0.. {
        let len = [1, 40, 3000, 200_000][round % 4];
        let mut buffer = vec![1f32; len * size];
        blocking.all_reduce(&mut buffer[..len], ReduceOp::Sum)?;
        blocking.broadcast(&mut buffer[..len], round % size)?;
        blocking.all_gather(&vec![1f32; len], &mut buffer)?;
        blocking.reduce_scatter(&buffer, &mut vec![0f32; len], ReduceOp::Sum)?;
        blocking.all_to_all(&buffer, &mut vec![0f32; len * size])?;
        comm.block_on(async {
            comm.all_reduce(&mut registered, ReduceOp::Mean).await?;
            comm.broadcast(&mut registered, round % size).await?;
            comm.reduce_scatter(&whole, &mut part, ReduceOp::Sum).await?;
            comm.all_gather(&part, &mut whole).await
        })?;
        blocking.barrier()?;
        if round == 0 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// One collective after the other on memory of the device under test, until something fails.
fn on_device(world: &World, deadline: Duration) -> Result<()> {
    world.set_deadline(deadline);
    let comm = Communicator::open(world, 0)?;
    let queue = testing::queue();
    comm.attach(&queue)?;
    let mut encoding = Encoding::new(named("min-max8")?).with_feedback(Feedback::Error);
    let round = |encoding: &mut Encoding| -> Result<Buffer> {
        let mut x = Buffer::zeroed_on(&queue, DType::F32, 20_000)?;
        comm.block_on(comm.all_reduce(&mut x, ReduceOp::Mean))?;
        comm.block_on(comm.all_reduce_encoded(&mut x, ReduceOp::Mean, encoding))?;
        queue.check().map(|()| x)
    };
    // Kept, so that little memory runs out.
    let mut kept = Vec::new();
    for number in 0.. {
        // As an engine does.
        kept.push(round(&mut encoding).inspect_err(|error| comm.give_up(error))?);
        if number == 0 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Three threads wait, over one endpoint, for messages of the next rank that never come.
fn executor(world: &World) -> Result<()> {
    let executor = Executor::start(world, 0, ExecutorOptions::default())?;
    let from = (world.rank() + 1) % world.size();
    let submit = |receives: bool| {
        let job = async move |comm: &Communicator| {
            let mut buffer = Buffer::zeroed(DType::F32, 1)?;
            if receives { comm.recv(&mut buffer, from).await } else { Ok(()) }
        };
        let options = JobOptions { order: Order::AtOnce, ..JobOptions::default() };
        // SAFETY: it keeps nothing of the communicator, and holds a buffer only.
        unsafe { executor.submit(executor.world(), options, job) }
    };
    let tickets = [(); 3].map(|()| submit(true));
    // It begins after them, and so they have begun.
    submit(false).wait(None).unwrap_or(Ok(()))?;
    eprintln!("ready");
    let outcomes: Vec<Result<()>> = thread::scope(|scope| {
        let threads = tickets.map(|ticket| scope.spawn(move || ticket.wait(None).unwrap_or(Ok(()))));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let blamed: Vec<String> =
        outcomes.iter().filter_map(|outcome| outcome.as_ref().err().map(culprit)).collect();
    assert!(blamed.len() == 3 && blamed.iter().all(|culprit| *culprit == blamed[0]), "{outcomes:?}");
    outcomes.into_iter().collect()
}

/// Rank 0 waits for 1, 1 for 2, and the last one computes.
fn chain(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    comm.set_deadline(PATIENCE);
    eprintln!("ready");
    if comm.rank() + 1 == comm.size() {
        compute_until_told(world);
    }
    let from = (comm.rank() + 1) % comm.size();
    comm.blocking().recv(&mut [0f32], from)
}

/// All meet in a collective but the last, which computes.
fn absent(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    comm.set_deadline(PATIENCE);
    eprintln!("ready");
    if comm.rank() + 1 == comm.size() {
        compute_until_told(world);
    }
    comm.blocking().all_reduce(&mut [1f32], ReduceOp::Sum)
}

/// All meet in a collective but the last, which has finished.
fn leaver(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    eprintln!("ready");
    if comm.rank() + 1 < comm.size() { comm.blocking().barrier() } else { Ok(()) }
}

/// One rank gives up, and ends as soon as one of its threads knows, while all others meet in collectives.
fn quits(world: &World, rank: usize) -> Result<()> {
    if world.rank() != rank {
        return collectives(world);
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            while world.health().verdict().is_none() {
                std::hint::spin_loop();
            }
            std::process::exit(1);
        });
        world.health().fail_self("lost its data");
        std::process::exit(1)
    })
}

/// Two ranks, each in an operation that the other is not in.
fn circle(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    comm.set_deadline(PATIENCE);
    eprintln!("ready");
    comm.blocking().recv(&mut vec![0f32; 1 + comm.rank()], 1 - comm.rank())
}

/// Rank 0 has nothing more to do; the others go on.
fn early_end(world: World) -> Result<()> {
    let comm = Communicator::open(&world, 0)?;
    eprintln!("ready");
    if comm.rank() == 0 {
        drop((comm, world));
        return Ok(());
    }
    // Any operations without rank 0.
    let peer = 3 - comm.rank();
    for _ in 0.. {
        comm.blocking().send(&[1f32], peer)?;
        comm.blocking().recv(&mut [0f32], peer)?;
    }
    Ok(())
}

/// One average in the background after the other, while the main thread does nothing but wait.
fn background(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    let background = comm.block_on(Background::start(&comm))?;
    let model = Model::new(Mutex::new(testing::zeroed(DType::F32, 50_000)));
    for round in 0.. {
        background.post_mean(&model).blocking()?;
        if round == 0 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Pushes, ticks and pulls without end, as fast as the slowest allows.
fn server(world: &World, staleness: u64) -> Result<()> {
    const LEN: usize = 50_000;
    let comm = Communicator::open(world, 0)?;
    let service = comm.block_on(Service::start(&comm))?;
    let clock = comm.block_on(Clock::start(&comm, &service, staleness))?;
    let mut x = testing::zeroed(DType::F32, LEN);
    let mut server =
        comm.block_on(Server::start(&comm, &service, &clock, &x, Add, ServerOptions::default()))?;
    for round in 0.. {
        server.blocking().push(0..LEN, &x)?;
        clock.tick();
        server.blocking().pull(0..LEN, &mut x)?;
        if round == 0 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Puts, gets and updates without end.
fn window(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    let service = comm.block_on(Service::start(&comm))?;
    let others: Vec<usize> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
    let window =
        comm.block_on(Window::create(&comm, &service, &testing::zeroed(DType::F32, 50_000), &others, None))?;
    let peers: Vec<_> = others.iter().map(|rank| (*rank, 0.25)).collect();
    for round in 0.. {
        let put = window.put(1.0, &peers);
        window.get(&peers).blocking()?;
        put.blocking()?;
        window.blocking().update(0.5, &peers, false)?;
        if round == 0 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Exchanges with one after the other, under the lock.
fn pairs(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    let service = comm.block_on(Service::start(&comm))?;
    let options = PairOptions { locked: true, encoding: None };
    let pair =
        comm.block_on(PairExchange::create(&comm, &service, &testing::zeroed(DType::F32, 50_000), options))?;
    for round in 1.. {
        pair.exchange((comm.rank() + 1 + round % (comm.size() - 1)) % comm.size()).blocking()?;
        if round == 1 {
            eprintln!("ready");
        }
    }
    Ok(())
}

/// Has no more operations, while rank 0, or 1 if it is killed, continues.
fn closing(world: &World) -> Result<()> {
    let comm = Communicator::open(world, 0)?;
    let service = comm.block_on(Service::start(&comm))?;
    eprintln!("ready");
    if comm.rank() == 0 {
        compute_until_told(world);
    }
    service.blocking().close()
}

/// Takes no part, as in a computation that lasts too long, until a rank has given up.
fn compute_until_told(world: &World) {
    while world.health().verdict().is_none() {
        thread::sleep(Duration::from_millis(10));
    }
}
