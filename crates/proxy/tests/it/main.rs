//! Behaviour of the data plane over real sockets, one binary so that it links once.

mod http;
