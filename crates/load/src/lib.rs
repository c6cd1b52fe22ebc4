//! Load generator, echo server and byte relay; no HTTP code shared with the proxy
