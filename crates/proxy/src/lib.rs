//! The data plane: inbound, outbound, http, tcp
