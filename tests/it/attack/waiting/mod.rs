//! Requests that wait for room, and what makes them wait: drains, cooling, leases, sizes.
mod ends;
mod model;
mod probe;
mod served;
