/* A decoder and a provider, written from docs/src/protocol.md alone, without any library but C's and the system's.
 *
 *     peer decode SOCKET                 sends a cache to SOCKET; for each line of token ids it then checks the rows
 *     peer provide --tokens FILE ...     a provider on the shared route
 *
 * Row r of K at position p holds, in channel c, token * 100 + p + c / 4; V holds half more. The digest is not checked:
 * there is no BLAKE3 here.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { WIDTH = 4, CELLS = 16, PAGE = 4096, MAX_TOKENS = 1024, MAX_HEADER = 1 << 20, MAX_REGIONS = 64 };

static void fail(const char *words) {
    fprintf(stderr, "peer: %s\n", words);
    exit(1);
}

static float value(char part, long token, long position, long channel) {
    return (float)token * 100 + (float)position + (float)channel / 4 + (part == 'v' ? 0.5f : 0);
}

/* Section 6.4, of one f32 tensor more. */
static uint64_t mix(uint64_t hash, const uint64_t ne[4]) {
    const uint64_t f32 = 0, prime = UINT64_C(1099511628211);
    hash = (hash ^ f32) * prime;
    for (int dimension = 0; dimension < 4; dimension++) hash = (hash ^ ne[dimension]) * prime;
    return hash;
}

static const uint64_t HASH_START = UINT64_C(1469598103934665603);

/* ---- as much of JSON as a header needs ---- */

static const char *space(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* The first character after the value at `at`. */
static const char *after(const char *at) {
    at = space(at);
    if (*at == '"') {
        for (at++; *at && *at != '"'; at++)
            if (*at == '\\' && at[1]) at++;
        if (!*at) fail("a string of the header does not end");
        return at + 1;
    }
    if (*at == '{' || *at == '[') {
        int depth = 0;
        do {
            if (*at == '"') {
                at = after(at);
                continue;
            }
            depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
            if (!*at++) fail("the header ends too early");
        } while (depth);
        return at;
    }
    while (*at && !strchr(",]} \n\r\t", *at)) at++;
    return at;
}

/* The value of a key in the object at `at`, or NULL. */
static const char *field(const char *at, const char *key) {
    for (at = space(at) + 1; *(at = space(at)) == '"';) {
        int found = !strncmp(at + 1, key, strlen(key)) && at[1 + strlen(key)] == '"';
        at = space(space(after(at)) + 1);
        if (found) return at;
        at = space(after(at));
        if (*at == ',') at++;
    }
    return NULL;
}

/* The element of an index in the array at `at`, or NULL. */
static const char *element(const char *at, long index) {
    for (at = space(at) + 1; *(at = space(at)) != ']'; index--) {
        if (!index) return at;
        at = space(after(at));
        if (*at == ',') at++;
    }
    return NULL;
}

static uint64_t number(const char *at) {
    if (!at) fail("the header lacks a number");
    return strtoull(*at == '"' ? at + 1 : at, NULL, 0);
}

/* ---- the decoder ---- */

static int sealed_memory(off_t size) {
    int memory = memfd_create("c-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || posix_fallocate(memory, 0, size)) fail("no memory");
    if (fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) fail("it cannot be sealed");
    return memory;
}

static void send_message(const char *path, const char *header, int descriptor) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) fail("the socket's path is too long");
    strcpy(address.sun_path, path);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("nobody listens");
    uint32_t length = (uint32_t)strlen(header);
    unsigned char prefix[4] = {length & 255, length >> 8 & 255, length >> 16 & 255, length >> 24};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec first = {.iov_base = prefix, .iov_len = sizeof prefix};
    struct msghdr message = {
        .msg_iov = &first, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    if (sendmsg(connection, &message, MSG_NOSIGNAL) != sizeof prefix) fail("the length was not sent");
    for (size_t done = 0; done < length;) {
        ssize_t sent = send(connection, header + done, length - done, MSG_NOSIGNAL);
        if (sent < 0) fail("the header was not sent");
        done += (size_t)sent;
    }
    close(connection);
}

static int is_right(const float *k, const float *v, char *line) {
    long position = 0;
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"), position++)
        for (long channel = 0; channel < WIDTH; channel++) {
            long place = position * WIDTH + channel, token = atol(word);
            if (k[place] != value('k', token, position, channel)) return 0;
            if (v[place] != value('v', token, position, channel)) return 0;
        }
    return position > 0;
}

static void decode(const char *path) {
    const uint64_t ne[4] = {WIDTH, CELLS, 1, 1};
    char header[1024];
    snprintf(header, sizeof header,
             "{\"version\":1,\"regions\":[{\"fd\":0,\"offset\":0,\"size\":%d,\"layout\":\"%" PRIu64 "\"}],"
             "\"tensors\":[{\"name\":\"cache_k_l0\",\"type\":\"f32\",\"ne\":[%d,%d,1],\"region\":0,\"offset\":0},"
             "{\"name\":\"cache_v_l0\",\"type\":\"f32\",\"ne\":[%d,%d,1],\"region\":0,\"offset\":%d}]}",
             2 * PAGE, mix(mix(HASH_START, ne), ne), WIDTH, CELLS, WIDTH, CELLS, PAGE);
    int memory = sealed_memory(2 * PAGE);
    send_message(path, header, memory);
    const char *cells = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, memory, 0);
    if (cells == MAP_FAILED) fail("the cache cannot be mapped");
    char line[MAX_TOKENS * 12];
    while (fgets(line, sizeof line, stdin)) {
        puts(is_right((const float *)cells, (const float *)(cells + PAGE), line) ? "right" : "wrong");
        fflush(stdout);
    }
}

/* ---- the provider ---- */

static const char *argument(int count, char **words, const char *flag) {
    for (int at = 0; at + 1 < count; at++)
        if (!strcmp(words[at], flag)) return words[at + 1];
    fail("an argument is missing");
    return NULL;
}

static void write_rows(char *memory, const char *tensor, const long *tokens, long count) {
    const char *name = field(tensor, "name"), *type = field(tensor, "type"), *ne = field(tensor, "ne");
    if (!name || !type || !ne || strncmp(type, "\"f32\"", 5)) fail("a tensor is not of f32");
    long width = (long)number(element(ne, 0));
    float *rows = (float *)(memory + number(field(tensor, "offset")));
    for (long position = 0; position < count; position++)
        for (long channel = 0; channel < width; channel++)
            rows[position * width + channel] = value(name[1 + strlen("cache_")], tokens[position], position, channel);
}

static void provide(int count, char **words) {
    static char header[MAX_HEADER + 1];
    static long tokens[MAX_TOKENS];
    long token_count = 0, descriptor_count = 0;
    int descriptors[MAX_REGIONS];
    for (const char *at = argument(count, words, "--fds"); at && descriptor_count < MAX_REGIONS; at = strchr(at, ',')) {
        if (*at == ',') at++;
        descriptors[descriptor_count] = atoi(at);
        if (fcntl(descriptors[descriptor_count++], F_SETFD, FD_CLOEXEC)) fail("a descriptor is not open");
    }
    FILE *file = fopen(argument(count, words, "--tokens"), "r");
    if (!file) fail("the tokens cannot be read");
    while (token_count < MAX_TOKENS && fscanf(file, "%ld", &tokens[token_count]) == 1) token_count++;
    fclose(file);
    file = fopen(argument(count, words, "--layout"), "r");
    if (!file || !fread(header, 1, MAX_HEADER, file)) fail("the header cannot be read");
    fclose(file);

    const char *regions = field(header, "regions"), *tensors = field(header, "tensors"), *region;
    if (!regions || !tensors) fail("the header lacks regions or tensors");
    for (long index = 0; (region = element(regions, index)); index++) {
        uint64_t fd = number(field(region, "fd")), size = number(field(region, "size"));
        const char *given = field(region, "offset"), *tensor;
        uint64_t offset = given ? number(given) : 0, hash = HASH_START;
        struct stat facts;
        if (fd >= (uint64_t)descriptor_count || fstat(descriptors[fd], &facts)) fail("a region has no descriptor");
        if (size > INT64_MAX - offset || offset + size > (uint64_t)facts.st_size) fail("a region is past its memory");
        /* From its start: of a dma-buf, many drivers show the first page wherever a part is mapped. */
        char *memory = mmap(NULL, offset + size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[fd], 0);
        if (memory == MAP_FAILED) fail("a region cannot be mapped");
        /* Ours come in the order of their offsets; the protocol would allow another order within the list. */
        for (long at = 0; (tensor = element(tensors, at)); at++) {
            if (number(field(tensor, "region")) != (uint64_t)index) continue;
            uint64_t ne[4] = {1, 1, 1, 1}, bytes = sizeof(float);
            for (long dimension = 0; dimension < 4 && element(field(tensor, "ne"), dimension); dimension++) {
                ne[dimension] = number(element(field(tensor, "ne"), dimension));
                if (!ne[dimension] || bytes > size / ne[dimension]) fail("a tensor is larger than its region");
                bytes *= ne[dimension];
            }
            uint64_t start = number(field(tensor, "offset"));
            if (start > size - bytes || (uint64_t)token_count > ne[1]) fail("a tensor has too little room");
            hash = mix(hash, ne);
            write_rows(memory + offset, tensor, tokens, token_count);
        }
        if (hash != number(field(region, "layout"))) fail("a region's layout is not the hash of its tensors");
        munmap(memory, offset + size);
    }
    printf("{\"n_tokens\": %ld, \"argmax\": 0}\n", token_count);
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "decode")) decode(words[2]);
    else if (count > 2 && !strcmp(words[1], "provide")) provide(count - 2, words + 2);
    else fail("decode SOCKET, or provide with a provider's arguments");
    return 0;
}
