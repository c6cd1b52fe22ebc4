//! The subscription protocol, both ends
