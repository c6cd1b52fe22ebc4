//! Chunked bodies: however they are cut, they end at the same byte, hold the same data, or are refused.

use voile_http1::{BodyError, ChunkScanner};

/// Result of reading the whole body: bytes used, data, and if it is over.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    used: usize,
    data: Vec<u8>,
    done: bool,
}

fn read(bytes: &[u8], step: usize) -> Result<Found, BodyError> {
    let (mut scanner, mut unwrapping) = (ChunkScanner::default(), ChunkScanner::default());
    let (mut used, mut data) = (0, Vec::new());
    while used < bytes.len() && !scanner.is_done() {
        let piece = &bytes[used..bytes.len().min(used + step)];
        let accepted = scanner.accept(piece);
        let mut copy = piece.to_vec();
        let unwrapped = unwrapping.unwrap_in_place(&mut copy);
        let (taken, kept) = match (accepted, unwrapped) {
            (Err(one), Err(_)) => return Err(one),
            (Ok(one), Ok((other, kept))) => {
                assert_eq!(one, other, "both readers use the same bytes");
                (one, kept)
            }
            both => panic!("one reader refuses, the other does not: {both:?}"),
        };
        assert!(kept <= taken);
        assert!(taken == piece.len() || scanner.is_done());
        data.extend_from_slice(&copy[..kept]);
        used += taken;
    }
    assert_eq!(scanner.is_done(), unwrapping.is_done());
    Ok(Found {
        used,
        data,
        done: scanner.is_done(),
    })
}

/// The first byte says how the rest is cut.
pub(crate) fn any_split(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let whole = read(bytes, bytes.len().max(1));
    let pieces = read(bytes, usize::from(*step % 32) + 1);
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(_), Err(_)) => {}
        (whole, pieces) => panic!("whole {whole:?}, in pieces {pieces:?}"),
    }
}
