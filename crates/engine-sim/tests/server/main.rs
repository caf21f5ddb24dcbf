//! The server over real sockets.

mod client;
mod completions;
mod faults;
mod load;
mod refusals;
