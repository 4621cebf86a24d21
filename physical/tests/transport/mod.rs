//! The guarantees of every transport, tested in the same way on each (`testing::transport` has the tests), and those
//! of only some.

mod cancelling;
mod carrying;
mod disagreeing;
mod ending;
mod mixed;
mod opening;

use hexagram_physical::testing::transport::{End, Matrix, label, numbers, on_lane, open_together};

hexagram_physical::transport_matrix!(Matrix::BuiltIn);
