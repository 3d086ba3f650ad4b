//! Deliveries over real sockets.
