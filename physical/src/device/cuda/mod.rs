//! CUDA: memory and queues of a GPU. Open this to see how work gets there.

#[cfg_attr(not(test), expect(dead_code, reason = "for the queue, which comes next"))]
mod arithmetic;
