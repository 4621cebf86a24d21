//! The device under test computes the host's bits: all operations and types, and various lengths, offsets and special
//! values.

use super::*;
use crate::Queue;
use crate::device::kernels::draw::mix;
use crate::device::kernels::testing::{odd_f32, odd_f64, plain};
use crate::testing::queue;
use half::{bf16, f16};

/// Elements of a vector load, and of one round of a block's threads, for the narrowest type.
const ROUNDS: [usize; 6] = [15, 16, 17, 4095, 4096, 4097];

/// Elements before a view, at most: all distances of views from 16 bytes.
const STARTS: usize = 17;

/// Returns the bytes of `len` elements: one of two, by chance, is odd, so that odd ones meet odd ones, too.
fn drawn(dtype: DType, len: usize, seed: u64) -> Vec<u8> {
    let odd_f32 = odd_f32();
    let odd_f64 = odd_f64();
    let plain = plain(len, seed + 1);
    let one = |at: usize| {
        let word = mix(seed << 32 ^ at as u64);
        let is_odd = word >> 63 == 1;
        let which = word as usize % 1024;
        let half = |nan: u16| [0, 1 << 15, nan, nan | 1 << 15, nan - 1, !0, 1, 0x3ff, 0x400][which % 9];
        match dtype {
            // Of booleans, half are 0 or 1 as they should be, and the others any byte.
            DType::Bool if is_odd => vec![word as u8 & 1],
            DType::U8 | DType::I8 | DType::Bool => vec![word as u8],
            DType::I16 => (word as i16).to_ne_bytes().to_vec(),
            DType::I32 => (word as i32).to_ne_bytes().to_vec(),
            DType::I64 => word.to_ne_bytes().to_vec(),
            DType::F16 if is_odd => half(0x7c01).to_ne_bytes().to_vec(),
            DType::BF16 if is_odd => half(0x7f81).to_ne_bytes().to_vec(),
            DType::F32 if is_odd => odd_f32[which % odd_f32.len()].to_ne_bytes().to_vec(),
            DType::F64 if is_odd => odd_f64[which % odd_f64.len()].to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f32(plain[at]).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(plain[at]).to_ne_bytes().to_vec(),
            DType::F32 => plain[at].to_ne_bytes().to_vec(),
            DType::F64 => (f64::from(plain[at]) * 1.1).to_ne_bytes().to_vec(),
        }
    };
    (0..len).flat_map(one).collect()
}

/// Returns a buffer of elements whose bytes are given.
fn placed(queue: &Queue, dtype: DType, bytes: &[u8]) -> Buffer {
    let host = Buffer::zeroed(dtype, bytes.len() / dtype.size()).unwrap();
    host.write_all().unwrap().host_bytes_mut().unwrap().copy_from_slice(bytes);
    let there = Buffer::zeroed_on(queue, dtype, host.len()).unwrap();
    there.write_all().unwrap().copy_from(&host.read_all().unwrap()).unwrap();
    there
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let host = Buffer::zeroed(buffer.dtype(), buffer.len()).unwrap();
    host.write_all().unwrap().copy_from(&buffer.read_all().unwrap()).unwrap();
    host.read_all().unwrap().host_bytes().unwrap().to_vec()
}

/// Runs of one type, in larger buffers; the elements around them must stay unchanged.
struct Runs {
    dtype: DType,
    len: usize,
    /// Elements before the run that is written, and before each of those that are read.
    starts: Vec<usize>,
}

impl Runs {
    /// Returns all bytes of the buffer in which `work` has written a run, on a queue.
    fn after(&self, queue: &Queue, work: &dyn Fn(&mut WriteView, &[ReadView])) -> Vec<u8> {
        let buffer = |(seed, start): (usize, &usize)| {
            let seed = (self.len << 8 | seed) as u64;
            placed(queue, self.dtype, &drawn(self.dtype, start + self.len + STARTS, seed))
        };
        let buffers: Vec<Buffer> = self.starts.iter().enumerate().map(buffer).collect();
        let range = |at: usize| self.starts[at]..self.starts[at] + self.len;
        let read = |at: usize| buffers[at].read(range(at)).unwrap();
        let from: Vec<ReadView> = (1..buffers.len()).map(read).collect();
        work(&mut buffers[0].write(range(0)).unwrap(), &from);
        drop(from);
        bytes_of(&buffers[0])
    }

    /// Checks that `work` leaves the same bytes on the device under test as on the host.
    fn check(&self, what: &str, work: impl Fn(&mut WriteView, &[ReadView])) {
        let want = self.after(&Queue::host(), &work);
        let got = self.after(&queue(), &work);
        let size = self.dtype.size();
        let wrong = want.chunks(size).zip(got.chunks(size)).position(|(want, got)| want != got);
        let Some(at) = wrong else { return };
        let bytes = |all: &[u8]| all[at * size..][..size].to_vec();
        let want = bytes(&want);
        let got = bytes(&got);
        let Runs { dtype, len, starts } = self;
        panic!("{what} of {len} × {dtype} at {starts:?}: element {at} is {got:?}, not {want:?}");
    }
}

/// Calls `check` with every length, at places that change with it.
fn each_length(operands: usize, check: impl Fn(Runs)) {
    for len in (0..300).chain(ROUNDS) {
        for dtype in DType::ALL {
            let starts =
                (0..operands).map(|at| if len % 3 == 0 { len % STARTS } else { (len + at) % STARTS });
            check(Runs { dtype, len, starts: starts.collect() });
        }
    }
}

#[test]
fn reductions_agree_with_the_host() {
    each_length(2, |runs| {
        for op in ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise() || !runs.dtype.is_float()) {
            runs.check(&op.to_string(), |to, from| to.reduce(op, &from[0]).unwrap());
        }
    });
}

#[test]
fn floats_have_no_bitwise_reductions() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let one = placed(&queue(), dtype, &vec![1; 4 * dtype.size()]);
        let other = one.copied().unwrap();
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_bitwise()) {
            let refused = one.write_all().unwrap().reduce(op, &other.read_all().unwrap()).unwrap_err();
            assert!(refused.to_string().contains(&format!("{op} is undefined for {dtype}")), "{refused}");
        }
        assert_eq!(bytes_of(&one), vec![1; 4 * dtype.size()]);
    }
}

#[test]
fn factors_agree_with_the_host() {
    each_length(2, |runs| {
        if runs.dtype.is_float() {
            for factor in [0.3, -1e30, f64::NAN] {
                runs.check("scale", |to, _| to.scale(factor).unwrap());
                runs.check("add_scaled", |to, from| to.add_scaled(factor, &from[0]).unwrap());
            }
        }
    });
}

/// Sums as many terms as there are runs; the one at `own`, if any, is the output.
fn weigh(to: &mut WriteView, from: &[ReadView], own: usize) {
    let weight = |at: usize| [0.3, -1.7, 1e-3, 1.0 / 3.0][at % 4];
    let terms: Vec<_> =
        from.iter().enumerate().map(|(at, from)| (weight(at), (at != own).then_some(from))).collect();
    to.weighted_sum(&terms).unwrap();
}

#[test]
fn weighted_sums_agree_with_the_host() {
    each_length(4, |runs| {
        if runs.dtype.is_float() {
            runs.check("weighted_sum", |to, from| weigh(to, from, runs.len % 4));
        }
    });
}

#[test]
fn any_number_of_terms_is_summed() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for terms in 0..20 {
            for len in [1, 37, 260] {
                let starts = (0..=terms).map(|at| if len == 37 { at % STARTS } else { 3 }).collect();
                let runs = Runs { dtype, len, starts };
                runs.check("weighted_sum", |to, from| weigh(to, from, terms / 2));
            }
        }
    }
}

#[test]
fn a_sum_of_negative_zeros_is_one() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let zero = [&vec![0; dtype.size() - 1][..], &[0x80]].concat();
        let zeros = placed(&queue(), dtype, &zero.repeat(20));
        for terms in 1..20 {
            let sum = Buffer::zeroed_on(&queue(), dtype, 20).unwrap();
            let term = zeros.read_all().unwrap();
            sum.write_all().unwrap().weighted_sum(&vec![(0.5, Some(&term)); terms]).unwrap();
            assert_eq!(bytes_of(&sum), zero.repeat(20), "{terms} terms of {dtype}");
        }
    }
}

#[test]
fn runs_may_begin_anywhere() {
    for dtype in DType::ALL {
        for to in 0..STARTS {
            for from in 0..STARTS {
                let runs = Runs { dtype, len: 70, starts: vec![to, from] };
                runs.check("sum", |to, from| to.reduce(ReduceOp::Sum, &from[0]).unwrap());
            }
        }
    }
}

#[test]
fn every_code_of_16_bits_rounds_as_on_the_host() {
    for dtype in [DType::F16, DType::BF16] {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        for factor in [1.0, 1.0 / 3.0, 1e-3, 8.0, 1.0 + f64::powi(2.0, -11)] {
            let scaled = |queue: &Queue| {
                let x = placed(queue, dtype, &codes);
                x.write_all().unwrap().scale(factor).unwrap();
                bytes_of(&x)
            };
            assert!(scaled(&queue()) == scaled(&Queue::host()), "{dtype} × {factor}");
        }
    }
}
