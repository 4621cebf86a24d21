//! Calibration: the table of rates of the machine on which it runs.
//!
//! Each operation runs twice: on a simulated rank whose only rate is a gigabyte a second, to see the charge, and then
//! for real, to see the time. So each rate is in the units of a simulation's charges.

use crate::program::step::spent;
use hexagram::algorithms::optimizer::{Section, Update};
use hexagram::algorithms::{Muon, Optimizer, Sgd, Tensor};
use hexagram::codec::{self, Codec, LinearCodec, PowerSgd, Round};
use hexagram::physical::runtime::Work;
use hexagram::physical::sim::{Cluster, LinkSpec, Rates, Simulation};
use hexagram::physical::{drive, output, runtime};
use hexagram::{Buffer, Communicator, DType, Error, ReduceOp, Result, TransportKind, testing};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Elements of the buffers: 32 MiB, since caches of 32 MiB are common and a bucket has left the caches before its
/// next use. A test without optimization would take minutes, and under load more than its limit.
const ELEMENTS: usize = if cfg!(test) { 1 << 16 } else { 1 << 23 };
/// Rows and columns of the matrix of Muon's step.
const MATRIX: [usize; 2] = [128, 512];
/// Rows and columns of the matrix to factor, with as many elements as the buffers, and the rank.
const FACTORED: (usize, usize) = (ELEMENTS / 4096, 4096);
const RANK: usize = 2;
/// Rate of the simulation that shows the charges.
const GIGA: f64 = 1e9;
/// Number of times that an operation is done at least, and for how long.
const TIMES: u32 = 5;
const LEAST: Duration = Duration::from_millis(40);
/// Bytes that each rank sends before the measurement, and during it; number of small messages.
const LARGE: usize = 1 << 20;
const STREAMED: usize = 32 << 20;
const EXCHANGED: usize = 400;

/// Measures the rates of this machine, and writes them to a file, as `--rates` reads it.
///
/// # Errors
/// As [`measured`]; [`Error::System`] if the file cannot be written.
pub(super) fn write(path: &Path) -> Result<()> {
    let refused = |cause| {
        let remedy = "choose a file in an existing, writable folder";
        Error::system(format!("write the rates {}", path.display()), cause, remedy)
    };
    output::check_writable(path).map_err(refused)?;
    let rates = measured()?;
    output::write(path, |out| write!(out, "{rates}")).map_err(refused)
}

/// Measures the rates of this machine: of one thread that computes, and of messages over TCP between two.
fn measured() -> Result<Rates> {
    let mut rates = arithmetic()?;
    let MessageTimes { message_s, bytes_s, .. } = loopback()?;
    rates.message = Duration::from_secs_f64(message_s);
    rates.send = bytes_s;
    rates.receive = bytes_s;
    Ok(rates)
}

/// Measures the rates of arithmetic by one thread.
///
/// # Errors
/// [`Error::System`] if memory runs out.
pub(crate) fn arithmetic() -> Result<Rates> {
    let mut text = String::new();
    for operation in RatedOperation::all()? {
        text += &format!("{} {:e}\n", operation.name(), operation.rate()?);
    }
    let mut rates: Rates = text.parse()?;
    for of_codecs in [&mut rates.encode, &mut rates.decode] {
        of_codecs.insert("*".to_owned(), middle(of_codecs));
    }
    Ok(rates)
}

/// Returns the times of messages over TCP between two threads of this process. The threads wait as those for
/// communication during computation do.
///
/// # Errors
/// Those of the communication.
pub(crate) fn loopback() -> Result<MessageTimes> {
    let both = testing::spawn(TransportKind::Tcp, 2, |comm| {
        drive::beside_computation();
        exchange(&comm)
    })?;
    let nothing = || Error::usage("the loopback measurement gave no result", "report this");
    both.into_iter().next().ok_or_else(nothing)
}

fn middle(rates: &BTreeMap<String, f64>) -> f64 {
    let mut rates: Vec<f64> = rates.values().copied().collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::INFINITY)
}

/// Operation of which there is a rate.
enum RatedOperation {
    Fill,
    Copy,
    Reduce,
    Scale,
    WeightedSum,
    /// Step of plain SGD.
    Kernel,
    /// Step of Muon, which is hardly anything but products of matrices.
    Product,
    Encode(Arc<dyn Codec>),
    Decode(Arc<dyn Codec>),
    /// Rounds of a codec of low rank.
    EncodeLinear(PowerSgd),
    DecodeLinear(PowerSgd),
}

/// Buffers of an operation.
struct CalibrationBuffers {
    gradients: Buffer,
    parameters: Buffer,
    /// Room for a message.
    room: Buffer,
    /// Length of the message in it, in bytes.
    message: usize,
    /// Message of a linear codec, and the codec's memory.
    reduced: Vec<f32>,
    memory: Vec<f32>,
}

impl RatedOperation {
    fn all() -> Result<Vec<Self>> {
        use RatedOperation::{Copy, Fill, Kernel, Product, Reduce, Scale, WeightedSum};
        let mut all = vec![Fill, Copy, Reduce, Scale, WeightedSum, Kernel, Product];
        for name in codec::names() {
            all.push(RatedOperation::Encode(codec::named(name)?));
            all.push(RatedOperation::Decode(codec::named(name)?));
        }
        let low_rank = PowerSgd::new(&[FACTORED], RANK)?;
        all.push(RatedOperation::EncodeLinear(low_rank.clone()));
        all.push(RatedOperation::DecodeLinear(low_rank));
        Ok(all)
    }

    /// Returns the name in a file of rates: that of a codec without its options.
    fn name(&self) -> String {
        let stem = |name: String| name.split('(').next().unwrap_or_default().to_owned();
        match self {
            RatedOperation::Fill => "fill".to_owned(),
            RatedOperation::Copy => "copy".to_owned(),
            RatedOperation::Reduce => "reduce".to_owned(),
            RatedOperation::Scale => "scale".to_owned(),
            RatedOperation::WeightedSum => "weighted_sum".to_owned(),
            RatedOperation::Kernel => "kernel".to_owned(),
            RatedOperation::Product => "product".to_owned(),
            RatedOperation::Encode(codec) => format!("encode {}", stem(codec.name())),
            RatedOperation::Decode(codec) => format!("decode {}", stem(codec.name())),
            RatedOperation::EncodeLinear(codec) => format!("encode {}", stem(codec.name())),
            RatedOperation::DecodeLinear(codec) => format!("decode {}", stem(codec.name())),
        }
    }

    fn operands(&self) -> Result<CalibrationBuffers> {
        // Values of both signs that differ, as those of gradients do.
        let value = |at: usize| ((at.wrapping_mul(2_654_435_761) >> 8) % 2001) as f32 * 1e-3 - 1.0;
        let elements =
            if matches!(self, RatedOperation::Product) { MATRIX.iter().product() } else { ELEMENTS };
        let gradients = Buffer::from_slice(&(0..elements).map(value).collect::<Vec<f32>>())?;
        let parameters = Buffer::zeroed(DType::F32, elements)?;
        let longest = match self {
            RatedOperation::Encode(codec) | RatedOperation::Decode(codec) => codec.encoded_len(ELEMENTS),
            _ => 0,
        };
        let room = Buffer::zeroed(DType::U8, longest)?;
        let memory = match self {
            RatedOperation::EncodeLinear(codec) | RatedOperation::DecodeLinear(codec) => {
                codec.memory_len(ELEMENTS)
            }
            _ => 0,
        };
        let reduced = Vec::new();
        let mut operands = CalibrationBuffers {
            gradients,
            parameters,
            room,
            message: 0,
            reduced,
            memory: vec![0.0; memory],
        };
        match self {
            RatedOperation::Decode(codec) => operands.encode(&**codec)?,
            RatedOperation::DecodeLinear(codec) => operands.encode_linear(codec)?,
            _ => {}
        }
        Ok(operands)
    }

    fn once(&self, on: &mut CalibrationBuffers) -> Result<()> {
        let CalibrationBuffers { gradients, parameters, .. } = &*on;
        match self {
            RatedOperation::Fill => parameters.write_all()?.clear(),
            RatedOperation::Copy => parameters.write_all()?.copy_from(&gradients.read_all()?)?,
            RatedOperation::Reduce => {
                parameters.write_all()?.reduce(ReduceOp::Max, &gradients.read_all()?)?
            }
            RatedOperation::Scale => parameters.write_all()?.scale(0.5)?,
            RatedOperation::WeightedSum => {
                let from = gradients.read_all()?;
                parameters.write_all()?.weighted_sum(&[(0.5, None), (0.5, Some(&from))])?;
            }
            RatedOperation::Kernel => on.step(&Sgd::default(), vec![ELEMENTS])?,
            RatedOperation::Product => on.step(&Muon::default(), MATRIX.to_vec())?,
            RatedOperation::Encode(codec) => on.encode(&**codec)?,
            RatedOperation::Decode(codec) => on.decode(&**codec)?,
            RatedOperation::EncodeLinear(codec) => on.encode_linear(codec)?,
            RatedOperation::DecodeLinear(codec) => on.decode_linear(codec)?,
        }
        Ok(())
    }

    /// Returns the rate, in charged units per second.
    fn rate(&self) -> Result<f64> {
        Ok(self.charged()? / self.seconds()?)
    }

    /// Returns how much a simulation charges for it: bytes, or elements of a codec.
    fn charged(&self) -> Result<f64> {
        let rates: Rates = format!("{} {GIGA:e}", self.name()).parse()?;
        let link = LinkSpec::new(GIGA, Duration::ZERO);
        let simulation = Simulation { rates, ..Simulation::new(Cluster::flat(1, 1, link, link)?) };
        let outcome = simulation.run(|_| {
            let mut operands = self.operands()?;
            let began = runtime::now();
            self.once(&mut operands)?;
            Ok::<f64, Error>(began.elapsed().as_secs_f64())
        })?;
        let taken: Vec<f64> = outcome.results.into_iter().collect::<Result<_>>()?;
        Ok((taken[0] * GIGA).round())
    }

    /// Returns the mean of the real times, in seconds, including turns of other users of the processor.
    fn seconds(&self) -> Result<f64> {
        let mut operands = self.operands()?;
        self.once(&mut operands)?;
        let began = runtime::now();
        let mut times = 0;
        while times < TIMES || began.elapsed() < LEAST {
            self.once(&mut operands)?;
            times += 1;
        }
        Ok((began.elapsed().as_secs_f64() / f64::from(times)).max(1e-9))
    }
}

impl CalibrationBuffers {
    /// Makes a step of an optimizer on a parameter of this shape.
    fn step(&mut self, optimizer: &dyn Optimizer, shape: Vec<usize>) -> Result<()> {
        let elements = self.parameters.len();
        let tensor = Tensor { name: "calibrated".into(), shape, elements: 0..elements };
        let section = Section { tensors: 0..1, ..Section::whole(elements) };
        let zeroed = |slot: &&str| Buffer::zeroed(DType::F32, optimizer.slot_len(slot, &tensor));
        optimizer.step(Update {
            step: 0,
            learning_rate: 1e-3,
            tensors: std::slice::from_ref(&tensor),
            sections: &[section],
            gradients: &self.gradients,
            parameters: &mut self.parameters,
            slots: &mut optimizer.slots().iter().map(zeroed).collect::<Result<Vec<_>>>()?,
        })
    }

    fn encode(&mut self, codec: &dyn Codec) -> Result<()> {
        let encoded = self.room.write_all()?.encode(codec, &self.gradients.read_all()?, 7)?;
        self.message = encoded.map_err(|error| refused(&codec.name(), &error))?;
        Ok(())
    }

    /// Encodes as all-reduces of linear codecs do; the result of the first round stands for the reduced message.
    fn encode_linear(&mut self, codec: &dyn LinearCodec) -> Result<()> {
        let from = self.gradients.host::<f32>()?;
        self.reduced.clear();
        for number in 0..codec.rounds() {
            self.gradients.queue().computes(|| Work::Encode { codec: codec.name(), elements: from.len() });
            let mut message = vec![0.0; codec.message_len(number, from.len())];
            let round = Round { number, from: &from, reduced: &self.reduced, seed: 7 };
            let encoded = codec.encode(round, &mut self.memory, &mut message);
            encoded.map_err(|error| refused(&codec.name(), &error))?;
            self.reduced = message;
        }
        Ok(())
    }

    fn decode_linear(&mut self, codec: &dyn LinearCodec) -> Result<()> {
        let mut to = self.parameters.host_mut::<f32>()?;
        self.gradients.queue().computes(|| Work::Decode { codec: codec.name(), elements: to.len() });
        let decoded = codec.decode(&self.reduced, &mut self.memory, &mut to, 7);
        decoded.map_err(|error| refused(&codec.name(), &error))
    }

    fn decode(&mut self, codec: &dyn Codec) -> Result<()> {
        let message = self.room.read(0..self.message)?;
        let decoded = self.parameters.write_all()?.decode(codec, &message, None)?;
        decoded.map_err(|error| refused(&codec.name(), &error))
    }
}

fn refused(codec: &str, error: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("{codec} cannot encode the measured buffer: {error}"), "report this")
}

/// Times of messages between ranks of different hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MessageTimes {
    /// Seconds of a small message there and back.
    pub(crate) round_s: f64,
    /// Seconds of the processor for a small message, at either end; of use where a thread that waits parks.
    pub(crate) message_s: f64,
    /// Bytes a second that a rank sends to the others while it receives from them.
    pub(crate) bytes_s: f64,
}

/// Returns the times of small messages between the first two ranks, and those of large ones between all pairs
/// together. A collective call.
///
/// # Errors
/// Those of the communication.
pub(crate) fn exchange(comm: &Communicator) -> Result<MessageTimes> {
    let mut rounds = vec![0.0];
    let before = spent()?;
    if comm.rank() < 2 {
        rounds = (0..EXCHANGED).map(|_| round(comm)).collect::<Result<_>>()?;
    }
    let message_s = (spent()? - before).as_secs_f64() / (2 * EXCHANGED) as f64;
    // A connection reaches its full speed only after some bytes.
    stream(comm, LARGE)?;
    let mut taken = [stream(comm, STREAMED)?];
    comm.blocking().all_reduce(&mut taken, ReduceOp::Max)?;
    Ok(MessageTimes { round_s: quick(rounds), message_s, bytes_s: STREAMED as f64 / taken[0].max(1e-9) })
}

/// Sends a small message to the other of the first two ranks, and receives one. Returns the seconds that both take.
fn round(comm: &Communicator) -> Result<f64> {
    let start = runtime::now();
    let is_first = comm.rank() == 0;
    turn(comm, 1 - comm.rank(), is_first, &mut [0u8; 8])?;
    turn(comm, 1 - comm.rank(), !is_first, &mut [0u8; 8])?;
    Ok(start.elapsed().as_secs_f64())
}

/// Sends this many bytes to all other ranks together, while they do the same. Returns the seconds.
fn stream(comm: &Communicator, bytes: usize) -> Result<f64> {
    let block = bytes / (comm.size() - 1).max(1);
    let counts: Vec<usize> = (0..comm.size()).map(|to| if to == comm.rank() { 0 } else { block }).collect();
    let sent = vec![0u8; counts.iter().sum()];
    let mut received = sent.clone();
    comm.block_on(comm.barrier())?;
    let start = runtime::now();
    comm.blocking().all_to_all_v(&sent, &counts, &mut received, &counts)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Sends or receives one message.
fn turn(comm: &Communicator, other: usize, sends: bool, message: &mut [u8]) -> Result<()> {
    match sends {
        true => comm.blocking().send(message, other),
        false => comm.blocking().recv(message, other),
    }
}

/// Returns the slowest of the fastest tenth of the values, at least one: the time without interference.
fn quick(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_a_simulation_gets_a_rate() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("hexagram-rates-{}", std::process::id()));
        write(&path).unwrap();
        let rates: Rates = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        std::fs::remove_file(&path).unwrap();
        let nowhere = write(&folder.join("hexagram-no-such-folder/rates")).unwrap_err().to_string();
        assert!(
            nowhere.contains("hexagram-no-such-folder") && nowhere.contains("an existing, writable folder"),
            "{nowhere}"
        );
        let plain = [
            rates.fill,
            rates.copy,
            rates.reduce,
            rates.scale,
            rates.weighted_sum,
            rates.kernel,
            rates.product,
        ];
        for rate in plain.into_iter().chain([rates.send, rates.receive]) {
            assert!(rate.is_finite() && rate > 1e6, "{rates}");
        }
        assert!(rates.message > Duration::ZERO && rates.message < Duration::from_secs(1), "{rates}");
        for name in codec::names() {
            let stem = codec::named(name).unwrap().name();
            let stem = stem.split('(').next().unwrap();
            assert!(rates.encode[stem].is_finite() && rates.decode[stem].is_finite(), "{name}: {rates}");
        }
    }

    /// Work is counted in the units of the rate, whatever the machine: bytes written, bytes read and written, elements.
    #[test]
    fn what_is_charged_is_counted_in_the_units_of_the_rate() {
        for (operation, of_each) in [
            (RatedOperation::Copy, 4.0),
            (RatedOperation::Kernel, 8.0),
            (RatedOperation::Encode(codec::named("sign").unwrap()), 1.0),
        ] {
            let charged = operation.charged().unwrap();
            assert_eq!(charged, of_each * ELEMENTS as f64, "{}", operation.name());
        }
    }
}
