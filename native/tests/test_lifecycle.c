/* test_lifecycle.c: opening, closing, forking, and that nothing is left behind. */
#include "harness.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int mappings(void) {
    int count = 0, c;
    FILE *file = fopen("/proc/self/maps", "re");
    while ((c = fgetc(file)) != EOF)
        count += c == '\n';
    fclose(file);
    return count;
}

/* 10,000 communicators come and go; descriptors and mappings stay as many as they were. */
static void come_and_go(void) {
    npc_error error;
    int files = 0, maps = 0;
    for (int i = 0; i < 10000; i++) {
        int fd;
        npc_comm *comms[2];
        npc_options options = {.size = sizeof options, .threads = i % 2};
        CHECK_OK(npc_area_create(2, &fd, &error));
        for (int r = 0; r < 2; r++)
            CHECK_OK(npc_comm_open(fd, r, 2, (uint64_t)i, "group", &options, &comms[r], &error));
        close(fd);
        for (int r = 0; r < 2; r++)
            npc_comm_close(comms[r]);
        if (i == 10) {
            files = open_files();
            maps = mappings();
        }
    }
    CHECK(open_files() == files, "%d files, now %d", files, open_files());
    CHECK(mappings() <= maps + 4, "%d mappings, now %d", maps, mappings());
}

/* A second process with a rank that is taken is refused, and told by whom. */
static void duplicates(rank_context *c) {
    npc_error error;
    npc_comm *comm;
    char pid[32];
    CHECK(npc_comm_open(c->fd, c->rank, c->size, 0, "world", NULL, &comm, &error) == NPC_ERR_ARGUMENT, "taken");
    snprintf(pid, sizeof pid, "process %d", (int)getpid());
    CHECK(strstr(error.text, pid) != NULL, "%s", error.text);
    CHECK(npc_comm_open(c->fd, 0, c->size + 1, 0, "world", NULL, &comm, &error) == NPC_ERR_ARGUMENT, "size");
    CHECK(npc_comm_open(0, 0, c->size, 0, "world", NULL, &comm, &error) != NPC_OK, "no area");
}

static void never_done(void *user, int status, const char *text) {
    (void)user;
    CHECK(false, "%d %s", status, text);
}

/* A forked child is refused in words; it harms nothing, and it does not keep its parent alive. */
static void forks(rank_context *c) {
    npc_error error;
    npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    int code, pipes[2];
    CHECK(pipe(pipes) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_FORKED, "run");
        CHECK(strstr(error.text, "forked") != NULL, "%s", error.text);
        CHECK(npc_comm_submit(c->comm, &d, never_done, NULL, &error) == NPC_ERR_FORKED, "submit");
        CHECK(npc_comm_ended(c->comm, &error) == NPC_ERR_FORKED, "ended");
        npc_comm_abort(c->comm, "no");
        npc_comm_close(c->comm);
        _exit(0);
    }
    CHECK(waitpid(child, &code, 0) == child && code == 0, "child ended with %d", code);
    for (int i = 0; i < 100; i++)
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
    if (c->rank == 0) {
        /* The child outlives the rank, and the others notice the rank's death all the same. */
        if (fork() == 0) {
            usleep(1500000);
            _exit(0);
        }
        abort();
    }
    double start = harness_seconds();
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_PEER_LOST, "%s", error.text);
    CHECK(harness_seconds() - start < 1.0, "%f", harness_seconds() - start);
}

/* The table for plugins finds a communicator by its id, and does not find it once it is closed. */
static void registry(void) {
    npc_error error;
    int fd;
    npc_comm *comm;
    const npc_api *api = npc_api_get();
    CHECK(api->version == NPC_API_VERSION && api->size == sizeof *api, "version");
    CHECK(api->comm_acquire(7) == NULL, "not open yet");
    CHECK_OK(npc_area_create(1, &fd, &error));
    CHECK_OK(npc_comm_open(fd, 0, 1, 7, "group", NULL, &comm, &error));
    close(fd);
    npc_comm *found = api->comm_acquire(7);
    CHECK(found == comm && api->comm_rank(found) == 0 && api->comm_size(found) == 1, "found");
    npc_comm_close(comm);
    CHECK(api->comm_acquire(7) == NULL, "closed");
    npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    CHECK(api->run(found, &d, &error) == NPC_ERR_CLOSED, "%s", error.text);
    api->comm_release(found);
}

static void names(void) {
    npc_error error;
    for (int i = -1; i < 20; i++) {
        CHECK(npc_status_text(i)[0] != '\0' && npc_kind_name(i)[0] != '\0', "%d", i);
        CHECK(npc_op_name(i)[0] != '\0' && npc_dtype_name(i)[0] != '\0', "%d", i);
    }
    CHECK(npc_dtype_size(0) == 0 && npc_dtype_size(NPC_COMPLEX128) == 16 && npc_dtype_size(16) == 0, "sizes");
    CHECK(npc_reduce_check(NPC_COMPLEX64, NPC_MAX, 0, &error) == NPC_ERR_UNSUPPORTED, "%s", error.text);
    CHECK(npc_area_create(0, NULL, &error) == NPC_ERR_ARGUMENT, "%s", error.text);
}

int main(void) {
    int codes[3];
    names();
    registry();
    come_and_go();
    run_processes(2, 5000, duplicates, NULL, NULL);
    run_processes(3, 5000, forks, NULL, codes);
    CHECK(codes[1] == 0 && codes[2] == 0 && codes[0] != 0, "%d %d %d", codes[0], codes[1], codes[2]);
    return 0;
}
