"""Random damage to the content of a file."""


def damage(content, rng):
    """Return a damaged copy of the content of a file."""
    start = rng.randrange(len(content))
    end = min(start + rng.randrange(1, 2000), len(content))
    match rng.randrange(7):
        case 0:
            return content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :]
        case 1:
            return content[:start]
        case 2:
            return content[:start] + bytes(end - start) + content[end:]
        case 3:
            return content[:start] + rng.randbytes(end - start) + content[end:]
        case 4:
            return content[start:end] + content[end - start : start] + content[: end - start] + content[end:]
        case 5:
            return content[:start] + content[end:]
    return content + rng.randbytes(rng.randrange(1, 200))
