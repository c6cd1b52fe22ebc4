//! Payloads as options name them: sizes, and bytes that are made.

/// The most bytes of one made payload.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;
/// A range of sizes is so many sizes, evenly spread.
const RANGE_SIZES: usize = 16;

/// Bytes of a payload that show where they are.
#[must_use]
pub fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| b'a' + (at % 26) as u8).collect()
}

/// The header field by which HTTP tells a user and a password, written `user:password`.
#[must_use]
pub fn basic(user: &str) -> String {
    use base64::Engine as _;
    let coded = base64::engine::general_purpose::STANDARD.encode(user);
    format!("Authorization: Basic {coded}")
}

/// Reads payload sizes: `1024`, a range `100..2000` (16 sizes, evenly spread), or several with weights `1024:90,65536:10`.
///
/// # Errors
/// Says which part is wrong and what was expected.
pub fn parse_sizes(text: &str) -> Result<Vec<(usize, f64)>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let wrong = || format!("`{part}`: expected BYTES, FROM..TO, or BYTES:WEIGHT with commas");
        let (range, weight) = match part.split_once(':') {
            Some((range, weight)) => (range, weight.trim().parse::<f64>().map_err(|_| wrong())?),
            None => (part, 1.0),
        };
        if !(weight.is_finite() && weight > 0.0) {
            return Err(wrong());
        }
        let size = |text: &str| {
            let size = text.trim().parse::<usize>().map_err(|_| wrong())?;
            let few = Some(size).filter(|size| *size <= MAX_PAYLOAD_BYTES);
            few.ok_or_else(|| format!("payload of {size} bytes: at most {MAX_PAYLOAD_BYTES}"))
        };
        match range.split_once("..") {
            None => sizes.push((size(range)?, weight)),
            Some((from, to)) => {
                let (from, to) = (size(from)?, size(to)?);
                let width = to.checked_sub(from).ok_or_else(wrong)?;
                let steps = RANGE_SIZES - 1;
                let each = (0..=steps).map(|step| (from + width * step / steps, weight));
                sizes.extend(each);
            }
        }
    }
    if sizes.iter().map(|(size, _)| size).sum::<usize>() > MAX_PAYLOAD_BYTES {
        return Err(format!(
            "payloads: at most {MAX_PAYLOAD_BYTES} bytes in total"
        ));
    }
    Ok(sizes)
}
