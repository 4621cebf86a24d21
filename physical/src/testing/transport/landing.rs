//! Messages that are reduced as they arrive.

use super::{End, Matrix, label};
use crate::memory::dtype::ReduceOp;
use crate::transport::{ReceiveMode, Source};
use crate::{Buffer, Element};

fn lands<T: Element>(end: &End, sequence: u64, mine: &[T], op: ReduceOp, want: &[T]) {
    let peer = 1 - end.rank();
    let out = Buffer::from_slice(mine).unwrap();
    let into = Buffer::from_slice(mine).unwrap();
    let label = label(sequence, 0, mine.len());
    let send = end.send(peer, label, &out);
    end.wait(end.recv(Source::Rank(peer), label, &into, ReceiveMode::Reduce(op))).unwrap();
    end.wait(send).unwrap();
    assert_eq!(&*into.host::<T>().unwrap(), want);
}

/// Receives messages that are reduced as they arrive.
pub fn messages_are_reduced_where_they_land(on: &Matrix) {
    on.all(&[2], |end| {
        lands(&end, 0, &[3u8, 250], ReduceOp::Sum, &[6, 244]);
        lands(&end, 1, &[2i64, -3], ReduceOp::Product, &[4, 9]);
        let large: Vec<f64> = (0..100_003).map(f64::from).collect();
        let doubled: Vec<f64> = large.iter().map(|x| x * 2.0).collect();
        lands(&end, 2, &large, ReduceOp::Sum, &doubled);
        lands(&end, 3, &[1.5f32], ReduceOp::Max, &[1.5]);
    });
}
