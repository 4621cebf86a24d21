//! Every built-in codec in every primitive that encodes, with difficult inputs: nothing, one number, odd lengths,
//! equal numbers, denormal ones, and a huge range. Nothing may become infinite or NaN, and nothing may grow beyond
//! the input. Where replicas are documented to be identical, they are.

use hexagram_logical::asynchronous::{
    Add, Background, Clock, Model, PairExchange, PairOptions, Server, ServerOptions, Service, Window,
};
use hexagram_logical::codec::{named, names};
use hexagram_logical::decentralized::{GossipOptions, Topology};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{self, spawn};
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result, TransportKind};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const RANKS: usize = 3;

/// A rank's initial numbers.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Constant,
    Denormal,
    Huge,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Constant, Kind::Denormal, Kind::Huge];

/// The largest power of ten that a codec takes: f16 refuses more.
fn most(codec: &str) -> i32 {
    if codec == "f16" { 4 } else { 37 }
}

fn numbers(codec: &str, kind: Kind, rank: usize, len: usize) -> Vec<f32> {
    let number = |at: usize| {
        let plain = ((at * 31 + rank * 17) % 101) as f32 / 50.0 - 1.0;
        match kind {
            Kind::Plain => plain,
            Kind::Constant => -0.7,
            Kind::Denormal => plain * 1e-40,
            // From 10⁻³⁷ on, of both signs.
            Kind::Huge => plain.signum() * 10f32.powi(((at * 7 + rank) as i32 % 75 - 37).min(most(codec))),
        }
    };
    (0..len).map(number).collect()
}

/// The bound of every result: a multiple of the norm of all inputs, which is the scale of QSGD.
fn bound(codec: &str, kind: Kind, len: usize) -> f64 {
    let all = (0..RANKS).flat_map(|rank| numbers(codec, kind, rank, len));
    let norm = all.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    // Denormal scales are rounded to steps of the smallest number.
    8.0 * norm + 1e-42
}

struct Case<'a> {
    comm: &'a Communicator,
    codec: &'a str,
    kind: Kind,
    len: usize,
}

impl Case<'_> {
    fn encoding(&self, feedback: Feedback) -> Result<Encoding> {
        Ok(Encoding::new(named(self.codec)?).with_feedback(feedback).with_seed(3))
    }

    fn buffer(&self) -> Result<Buffer> {
        Ok(testing::buffer(&numbers(self.codec, self.kind, self.comm.rank(), self.len)))
    }

    fn check(&self, what: &str, buffer: &Buffer) -> Result<()> {
        let Case { codec, kind, len, .. } = *self;
        let bound = bound(codec, kind, len);
        let far = buffer.host::<f32>()?.iter().copied().find(|x| f64::from(x.abs()) > bound || x.is_nan());
        assert_eq!(far, None, "{what}, {codec}, {kind:?} × {len}: beyond {bound}");
        Ok(())
    }

    fn check_identical(&self, what: &str, buffer: &Buffer) -> Result<()> {
        self.check(what, buffer)?;
        let mine: Vec<i32> = buffer.host::<f32>()?.iter().map(|x| x.to_bits() as i32).collect();
        let mut all = vec![0; mine.len() * RANKS];
        self.comm.blocking().all_gather(&mine, &mut all)?;
        let Case { codec, kind, len, .. } = self;
        assert!(
            (0..RANKS).all(|rank| all[rank * len..][..*len] == mine),
            "{what}, {codec}, {kind:?} × {len}"
        );
        Ok(())
    }

    fn centralized(&self) -> Result<()> {
        let comm = self.comm;
        for feedback in [Feedback::None, Feedback::Error, Feedback::TwoLevel, Feedback::Difference] {
            let mut buffer = self.buffer()?;
            let mut encoding = self.encoding(feedback)?;
            comm.block_on(comm.all_reduce_encoded(&mut buffer, ReduceOp::Mean, &mut encoding))?;
            self.check_identical("scatter-gather", &buffer)?;
        }
        let mut buffer = self.buffer()?;
        let mut encoding = self.encoding(Feedback::Error)?;
        comm.block_on(comm.all_reduce_sparse(&mut buffer, ReduceOp::Mean, &mut encoding))?;
        self.check_identical("all-gather", &buffer)
    }

    fn decentralized(&self) -> Result<()> {
        let comm = self.comm;
        let options = GossipOptions { consensus: 0.1, ..GossipOptions::default() };
        for feedback in [Feedback::None, Feedback::Error, Feedback::Difference, Feedback::Extrapolation] {
            let mut buffer = self.buffer()?;
            let mut encoding = self.encoding(feedback)?;
            comm.block_on(comm.gossip_encoded(&mut buffer, &Topology::Ring, 0, &mut encoding, options))?;
            self.check("gossip", &buffer)?;
        }
        Ok(())
    }

    fn windows(&self, service: &Service) -> Result<()> {
        let comm = self.comm;
        let rank = self.comm.rank();
        let next = (rank + 1) % RANKS;
        let previous = (rank + RANKS - 1) % RANKS;
        let mut buffer = self.buffer()?;
        let encoding = Some(self.encoding(Feedback::Error)?);
        let window = comm.block_on(Window::create(comm, service, &buffer, &[previous], encoding))?;
        window.put(1.0, &[(next, 0.5)]).blocking()?;
        comm.blocking().barrier()?;
        window.blocking().update(0.5, &[(previous, 1.0)], true)?;
        window.blocking().load(&mut buffer)?;
        self.check("window", &buffer)?;
        let encoding = Some(self.encoding(Feedback::None)?);
        let pair = comm.block_on(PairExchange::create(
            comm,
            service,
            &self.buffer()?,
            PairOptions { locked: true, encoding },
        ))?;
        pair.exchange(next).blocking()?;
        comm.blocking().barrier()?;
        pair.blocking().load(&mut buffer)?;
        self.check("pair exchange", &buffer)
    }

    fn servers(&self, service: &Service) -> Result<()> {
        let comm = self.comm;
        let clock = comm.block_on(Clock::start(comm, service, 0))?;
        let mut x = testing::buffer(&vec![0.0f32; self.len]);
        let pushed = self.encoding(Feedback::Error)?;
        let pulled = self.encoding(Feedback::None)?;
        let options = ServerOptions { pushed: Some(pushed), pulled: Some(pulled) };
        let mut server = comm.block_on(Server::start(comm, service, &clock, &x, Add, options))?;
        server.blocking().push(0..self.len, &self.buffer()?)?;
        clock.tick();
        server.blocking().pull(0..self.len, &mut x)?;
        self.check("server", &x)
    }

    fn background(&self, background: &Background) -> Result<()> {
        let model: Model = Arc::new(Mutex::new(self.buffer()?));
        let encoding = Arc::new(Mutex::new(self.encoding(Feedback::None)?));
        background.post_mean_encoded(&model, &encoding).blocking()?;
        let model = model.lock().unwrap();
        self.check("background", &model)
    }
}

fn run(codec: &str, kind: Kind, len: usize) {
    let outcome = spawn(TransportKind::Thread, RANKS, |comm| {
        let service = comm.block_on(Service::start(&comm))?;
        let background = comm.block_on(Background::start(&comm))?;
        let case = Case { comm: &comm, codec, kind, len };
        case.centralized()?;
        case.decentralized()?;
        case.windows(&service)?;
        case.servers(&service)?;
        case.background(&background)?;
        comm.blocking().barrier()?;
        service.blocking().close()
    });
    outcome.unwrap_or_else(|error| panic!("{codec}, {kind:?} × {len}: {error}"));
}

#[test]
fn every_codec_in_every_primitive_with_every_kind_of_numbers() {
    for codec in names() {
        for kind in KINDS {
            for len in [0, 1, 7, 2049] {
                run(codec, kind, len);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_length_will_do(codec in 0..names().len(), kind in 0..KINDS.len(), len in 0..6000usize) {
        run(names()[codec], KINDS[kind], len);
    }
}
