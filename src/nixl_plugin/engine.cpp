/*
 * What NIXL calls: its classes, over the C functions of nixl_plugin.h. No exception leaves the
 * plugin but those of NIXL's own containers, when there is no memory.
 */
#include "abi/nixl_backend.hpp"
#include "nixl_plugin/nixl_plugin.h"
#include "tcpx.h"

#include <cstdlib>

namespace
{

nixl_text text_of(const std::string &string)
{
    return {string.data(), string.size()};
}

std::string string_of(nixl_text text)
{
    return {text.bytes, text.length};
}

/* Memory of this side, and of a peer. */
struct Region final : nixlBackendMD {
    explicit Region(nixl_region *region) : nixlBackendMD(true), region(region)
    {
    }
    nixl_region *region;
};

struct Remote final : nixlBackendMD {
    explicit Remote(nixl_remote *remote) : nixlBackendMD(false), remote(remote)
    {
    }
    nixl_remote *remote;
};

struct Request final : nixlBackendReqH {
    explicit Request(nixl_request *request) : request(request)
    {
    }
    nixl_request *request;
};

nixl_request *request_of(nixlBackendReqH *handle)
{
    return static_cast<Request *>(handle)->request;
}

bool add_pieces(nixl_request *request, const nixl_meta_dlist_t &local,
                const nixl_meta_dlist_t &remote)
{
    for (size_t i = 0; i < local.count(); i++) {
        const nixlMetaDesc &here = local[i];
        const nixlMetaDesc &there = remote[i];
        nixl_piece piece = {};

        if (here.metadataP == nullptr || there.metadataP == nullptr || here.len != there.len)
            return false;
        piece.region = static_cast<Region *>(here.metadataP)->region;
        piece.address = here.addr;
        piece.remote = static_cast<Remote *>(there.metadataP)->remote;
        piece.remote_address = there.addr;
        piece.bytes = here.len;
        if (nixl_request_add(request, &piece) != NIXL_SUCCESS)
            return false;
    }
    return true;
}

class Engine final : public nixlBackendEngine
{
  public:
    Engine(const nixlBackendInitParams *params, nixl_agent *agent)
        : nixlBackendEngine(params), agent(agent)
    {
    }
    ~Engine() override
    {
        nixl_agent_destroy(agent);
    }

    bool supportsRemote() const override
    {
        return true;
    }
    bool supportsLocal() const override
    {
        return true;
    }
    bool supportsNotif() const override
    {
        return true;
    }
    nixl_mem_list_t getSupportedMems() const override
    {
        return {DRAM_SEG, VRAM_SEG};
    }

    /* --- memory */

    nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &type,
                              nixlBackendMD *&out) override
    {
        nixl_region *region = nullptr;
        nixl_status_t status;

        if (type != DRAM_SEG && type != VRAM_SEG)
            return NIXL_ERR_NOT_SUPPORTED;
        status = nixl_region_open(agent, type == VRAM_SEG ? int64_t(memory.devId) : -1, memory.addr,
                                  memory.len, &region);
        if (status == NIXL_SUCCESS)
            out = new Region(region);
        return status;
    }
    nixl_status_t deregisterMem(nixlBackendMD *memory) override
    {
        nixl_status_t status = nixl_region_close(static_cast<Region *>(memory)->region);

        if (status == NIXL_SUCCESS)
            delete memory;
        return status;
    }
    nixl_status_t getPublicData(const nixlBackendMD *memory, std::string &out) const override
    {
        out = string_of(nixl_region_key(static_cast<const Region *>(memory)->region));
        return NIXL_SUCCESS;
    }
    nixl_status_t loadRemoteMD(const nixlBlobDesc &memory, const nixl_mem_t &,
                               const std::string &peer, nixlBackendMD *&out) override
    {
        nixl_remote *remote = nullptr;
        nixl_status_t status =
            nixl_remote_open(agent, text_of(peer), text_of(memory.metaInfo), &remote);

        if (status == NIXL_SUCCESS)
            out = new Remote(remote);
        return status;
    }
    nixl_status_t loadLocalMD(nixlBackendMD *memory, nixlBackendMD *&out) override
    {
        nixl_remote *remote = nullptr;
        nixl_status_t status =
            nixl_remote_open_own(agent, static_cast<Region *>(memory)->region, &remote);

        if (status == NIXL_SUCCESS)
            out = new Remote(remote);
        return status;
    }
    nixl_status_t unloadMD(nixlBackendMD *memory) override
    {
        nixl_remote_close(static_cast<Remote *>(memory)->remote);
        delete memory;
        return NIXL_SUCCESS;
    }

    /* --- peers */

    nixl_status_t getConnInfo(std::string &out) const override
    {
        out = string_of(nixl_agent_endpoint(agent));
        return NIXL_SUCCESS;
    }
    nixl_status_t loadRemoteConnInfo(const std::string &peer, const std::string &info) override
    {
        return nixl_peer_load(agent, text_of(peer), text_of(info));
    }
    nixl_status_t connect(const std::string &peer) override
    {
        return nixl_peer_connect(agent, text_of(peer));
    }
    nixl_status_t disconnect(const std::string &peer) override
    {
        return nixl_peer_forget(agent, text_of(peer));
    }

    /* --- transfers */

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &peer,
                           nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const override
    {
        nixl_request *request = nullptr;
        nixl_status_t status;

        if (local.count() != remote.count())
            return NIXL_ERR_INVALID_PARAM;
        status = nixl_request_create(agent, text_of(peer), operation == NIXL_READ, local.count(),
                                     &request);
        if (status != NIXL_SUCCESS)
            return status;
        status = add_pieces(request, local, remote) ? nixl_request_prepare(request)
                                                    : NIXL_ERR_INVALID_PARAM;
        if (status == NIXL_SUCCESS)
            handle = new Request(request);
        else
            nixl_request_free(request);
        return status;
    }
    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
                           const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *options) const override
    {
        nixl_text notice = {};
        const bool has_notice = options != nullptr && options->hasNotif;

        if (has_notice)
            notice = text_of(options->notifMsg);
        return nixl_request_post(request_of(handle), has_notice ? &notice : nullptr);
    }
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override
    {
        return nixl_request_check(request_of(handle));
    }
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override
    {
        nixl_request_free(request_of(handle));
        delete handle;
        return NIXL_SUCCESS;
    }

    /* --- notifications */

    nixl_status_t getNotifs(notif_list_t &list) override
    {
        nixl_notice *notice = nixl_notices_take(agent);

        while (notice != nullptr) {
            nixl_notice *next = notice->next;

            list.emplace_back(string_of(notice->from), string_of(notice->text));
            std::free(notice);
            notice = next;
        }
        return NIXL_SUCCESS;
    }
    nixl_status_t genNotif(const std::string &peer, const std::string &text) const override
    {
        return nixl_notice_send(agent, text_of(peer), text_of(text));
    }

  private:
    nixl_agent *agent;
};

nixlBackendEngine *create(const nixlBackendInitParams *params)
{
    nixl_options *options = nixl_options_create();
    nixl_agent *agent;

    if (options == nullptr)
        return nullptr;
    for (const auto &[name, value] : *params->customParams)
        if (!nixl_options_set(options, name.c_str(), value.c_str())) {
            nixl_options_free(options);
            return nullptr;
        }
    agent = nixl_agent_create(text_of(params->localAgent), options);
    return agent != nullptr ? new Engine(params, agent) : nullptr;
}

void destroy(nixlBackendEngine *engine)
{
    delete engine;
}

nixl_b_params_t list_options()
{
    nixl_b_params_t list;
    const char *name;
    const char *value;

    for (size_t i = 0; nixl_option_at(i, &name, &value); i++)
        list[name] = value;
    return list;
}

nixl_mem_list_t list_memories()
{
    return {DRAM_SEG, VRAM_SEG};
}

nixlBackendPlugin plugin = {NIXL_PLUGIN_API_VERSION,
                            create,
                            destroy,
                            [] { return "TCPX"; },
                            tcpx_version,
                            list_options,
                            list_memories};

} // namespace

/* The address that this returns to is NIXL's. */
extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
    return nixl_interface_is_known(__builtin_return_address(0)) ? &plugin : nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
